package agent

import (
	"context"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of the last words of a container in an error message.
const (
	wordLines = 10
	wordBytes = 2 << 10
	wordRead  = 64 << 10 // of what the runtime gives for wordLines lines
	wordLimit = 5 * time.Second
)

// wordOutput is what comes between a message and the last words.
const wordOutput = "; its last output:\n  "

// listen reads the last words of containers that exited with an error, beside the loop.
func (l *loop) listen() {
	for id, s := range l.sup.Containers {
		if !s.Exited || s.Told || l.hearing[id] {
			continue
		}
		l.hearing[id] = true
		l.spawn(func() {
			words := l.lastWords(id)
			l.post(func(l *loop) {
				delete(l.hearing, id)
				s, ok := l.sup.Containers[id]
				if !ok {
					return
				}
				s.Told, s.Words = true, words
				l.sup.Containers[id] = s
			})
		})
	}
}

// lastWords is what a container wrote last, as a part of a message; "": nothing that can be had.
func (l *loop) lastWords(id string) string {
	ctx, cancel := context.WithTimeout(l.ctx, wordLimit)
	defer cancel()
	r, err := l.o.Runtime.Logs(ctx, id, LogOptions{Tail: wordLines})
	if err != nil {
		return ""
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, wordRead))
	if err != nil && len(b) == 0 {
		return ""
	}
	return quote(string(b))
}

// quote makes the end of an output fit for a message: few lines, few bytes, nothing that moves a cursor.
func quote(out string) string {
	clean := func(r rune) rune {
		switch {
		case r == utf8.RuneError, r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r):
			return -1
		}
		return r
	}
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(out, " ")) {
		if line = strings.TrimRight(strings.Map(clean, line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	left, from := wordBytes, len(lines)
	for from > 0 && len(lines)-from < wordLines && left > 0 {
		from--
		if n := len(lines[from]); n > left {
			cut := lines[from][n-left:]
			for len(cut) > 0 && !utf8.RuneStart(cut[0]) {
				cut = cut[1:]
			}
			lines[from] = "…" + cut
		}
		left -= len(lines[from]) + 1
	}
	if from == len(lines) {
		return ""
	}
	return wordOutput + strings.Join(lines[from:], "\n  ")
}
