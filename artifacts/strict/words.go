package strict

import (
	"strconv"
	"strings"
)

// quoted shows a foreign value in a message: escaped, and cut when it is long.
func quoted(s string) string {
	const most = 60
	if len(s) > most {
		return strconv.Quote(strings.ToValidUTF8(s[:most], "")) + "…" // not half of a character
	}
	return strconv.Quote(s)
}

func list(values []string) string {
	q := make([]string, len(values))
	for i, v := range values {
		q[i] = v
		if v == "" {
			q[i] = `""`
		}
	}
	return strings.Join(q, ", ")
}

// Nearest returns the known word that a person most likely meant: at most a third of its letters are wrong. "": none.
func Nearest(word string, known []string) string {
	best, at := "", 1<<30
	for _, k := range known {
		if len(word) > 64 || len(k) > 64 {
			continue
		}
		d := distance(strings.ToLower(word), strings.ToLower(k))
		if d < at && d <= max(1, min(len(k), len(word))/3) {
			best, at = k, d
		}
	}
	return best
}

// distance counts the edits (insert, delete, replace, swap of neighbours) between two words.
func distance(a, b string) int {
	prev2 := make([]int, len(b)+1)
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur := make([]int, len(b)+1)
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev = prev, cur
	}
	return prev[len(b)]
}
