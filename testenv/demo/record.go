package demo

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
)

// The picture is a terminal of this size, in characters; the others are in pixels.
const (
	columns    = 112
	rows       = 26
	textWidth  = 877 // of a full line, with some room for fonts that are wider than usual
	lineHeight = 19
	border     = 16
)

const (
	longestPause = 2 * time.Second // longer ones are shown as this
	lastPause    = 8 * time.Second // before it begins again
)

// recorder passes output on and keeps it with its timing.
type recorder struct {
	out    io.Writer
	now    func() time.Time
	last   time.Time
	at     time.Duration // of the last frame, pauses shortened
	lines  []string
	frames []frame
}

// frame is how many lines are seen from a time on.
type frame struct {
	at    time.Duration
	lines int
}

// newRecorder records what follows a command that a person types.
func newRecorder(out io.Writer, command string) *recorder {
	r := &recorder{out: out, now: time.Now, last: time.Now()}
	r.add("$ " + command + "\n")
	return r
}

// Write takes whole lines.
func (r *recorder) Write(text []byte) (int, error) {
	now := r.now()
	r.at += min(now.Sub(r.last), longestPause)
	r.last = now
	r.add(string(text))
	return r.out.Write(text)
}

func (r *recorder) add(text string) {
	for line := range strings.Lines(text) {
		r.lines = append(r.lines, wrap(strings.TrimRight(line, " \n"))...)
	}
	r.frames = append(r.frames, frame{r.at, len(r.lines)})
}

// indent of what follows in a wrapped line: below the text, behind the seconds.
const indent = "            "

// wrap breaks a line between words where it is longer than the terminal is wide.
func wrap(line string) (out []string) {
	for len([]rune(line)) > columns {
		r := []rune(line)
		at := columns
		if space := strings.LastIndex(string(r[:columns]), " "); space > columns/2 {
			at = len([]rune(string(r[:columns])[:space]))
		}
		out = append(out, string(r[:at]))
		line = indent + strings.TrimLeft(string(r[at:]), " ")
	}
	return append(out, line)
}

const style = `
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328; white-space: pre }
.ground { fill: #f6f8fa } .dim { fill: #656d76 } .title { font-weight: bold; fill: #0550ae }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .ground { fill: #161b22 } .dim { fill: #8b949e } .title { fill: #79c0ff } }
@media (prefers-reduced-motion: reduce) { #cover, #text { animation: none !important } }
`

// svg is the recording as a picture that moves: the lines, a cover that uncovers them one after the other, and scrolling.
// Without animation it is the last frame.
func (r *recorder) svg() []byte {
	width, height := textWidth+2*border, rows*lineHeight+2*border
	total := r.at + lastPause
	var b, cover, scroll bytes.Buffer
	for _, f := range r.frames {
		percent := 100 * f.at.Seconds() / total.Seconds()
		fmt.Fprintf(&cover, "%.2f%%{transform:translateY(%dpx)}", percent, f.lines*lineHeight)
		fmt.Fprintf(&scroll, "%.2f%%{transform:translateY(%dpx)}", percent, -max(0, f.lines-rows)*lineHeight)
	}
	end := len(r.lines)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="Recording of the demo">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<style>%s@keyframes cover{%s}\n@keyframes scroll{%s}\n", style, cover.Bytes(), scroll.Bytes())
	fmt.Fprintf(&b, "#cover{transform:translateY(%dpx);animation:cover %.1fs step-end infinite}\n", end*lineHeight, total.Seconds())
	fmt.Fprintf(&b, "#text{transform:translateY(%dpx);animation:scroll %.1fs step-end infinite}\n</style>\n", -max(0, end-rows)*lineHeight, total.Seconds())
	fmt.Fprintf(&b, `<rect class="ground" width="%d" height="%d" rx="8"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<svg x="%d" y="%d" width="%d" height="%d"><g id="text">`+"\n", border, border, width-2*border, rows*lineHeight)
	for i, line := range r.lines {
		if line != "" {
			fmt.Fprintf(&b, `<text xml:space="preserve" y="%d"%s</text>`+"\n", i*lineHeight+14, marked(line))
		}
	}
	fmt.Fprintf(&b, `<rect id="cover" class="ground" width="%d" height="%d"/>`+"\n</g></svg>\n</svg>\n", width, (end+rows)*lineHeight)
	return b.Bytes()
}

// timed is a step's line: its seconds, then what it showed.
var timed = regexp.MustCompile(`^( +\d+\.\d\d s)(  .*)$`)

// marked is the inside of a text element, with its class.
func marked(line string) string {
	if m := timed.FindStringSubmatch(line); m != nil {
		return `><tspan class="dim">` + escaped(m[1]) + `</tspan>` + escaped(m[2])
	}
	if !strings.HasPrefix(line, " ") {
		return ` class="title">` + escaped(line)
	}
	return `>` + escaped(line)
}

func escaped(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}
