package demo

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

func TestRecording(t *testing.T) {
	var out bytes.Buffer
	r := newRecorder(&out, "demo")
	clock := r.last
	r.now = func() time.Time { return clock }
	for i, pause := range []time.Duration{time.Second, time.Minute, time.Second} {
		clock = clock.Add(pause)
		fmt.Fprintf(r, "  %6.2f s  <%d> %s\n", pause.Seconds(), i, strings.Repeat("word ", 30*i))
	}
	if got := strings.Count(out.String(), "\n"); got != 3 {
		t.Errorf("%d lines were passed on, want 3", got)
	}
	picture := string(r.svg())
	d := xml.NewDecoder(strings.NewReader(picture))
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, picture)
		}
	}
	// 1 s, 60 s shown as 2 s, 1 s, then the last pause. The lines have 1, 1, 2 and 4 rows.
	for _, want := range []string{
		"animation:cover 12.0s", "0.00%{transform:translateY(19px)}8.33%{transform:translateY(38px)}25.00%{transform:translateY(76px)}33.33%{transform:translateY(152px)}",
		`<tspan class="dim">   60.00 s</tspan>  &lt;1&gt; word`,
	} {
		if !strings.Contains(picture, want) {
			t.Errorf("picture lacks %q:\n%s", want, picture)
		}
	}
}
