package artifacts_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
)

func TestCurrentProgress(t *testing.T) {
	d := digest.FromString("3").String()
	for name, tc := range map[string]struct {
		said, want string // "": none
		kept       string // as JSON again; "": as said
	}{
		"at work": {
			said: `{"phase":"downloading","since":"2026-11-26T10:00:00Z","generation":3,"digest":"` + d + `","done":12000000,"total":40000000}`,
			want: "generation 3: downloading since 2026-11-26T10:00:00Z, 12.0 of 40.0 MB",
		},
		"waits": {
			said: `{"phase":"awaiting-window","since":"2026-11-26T10:00:00Z","generation":3,"attempt":2,"code":"outside-window","message":"closed","until":"2026-11-26T22:00:00Z"}`,
			want: "generation 3: awaiting-window since 2026-11-26T10:00:00Z, boot 2, until 2026-11-26T22:00:00Z (outside-window)",
		},
		"not accepted":       {said: `{"phase":"verifying","digest":"` + d + `"}`, want: "a newer state: verifying"},
		"complete":           {said: `{"phase":"committed","generation":3}`},
		"a later version":    {said: `{"phase":"x-raying","generation":3}`, want: "generation 3: x-raying"},
		"history is dropped": {said: `{"phase":"failed","history":[{"generation":1}]}`, want: "a newer state: failed", kept: `{"phase":"failed"}`},
		"nothing":            {said: `{}`, kept: `{"phase":""}`},
		"null":               {said: `null`, kept: `null`},
		"no object":          {said: `[1]`, kept: `{"phase":""}`},
		"no phase":           {said: `{"phase":"","generation":3}`, kept: `{"phase":""}`},
		"a phase of markup":  {said: `{"phase":"<b>"}`, kept: `{"phase":""}`},
		"a phase of a line":  {said: `{"phase":"applying\u000aok"}`, kept: `{"phase":""}`},
		"a long phase":       {said: `{"phase":"` + strings.Repeat("a", 41) + `"}`, kept: `{"phase":""}`},
		"a number as phase":  {said: `{"phase":7}`, kept: `{"phase":""}`},
		"no digest":          {said: `{"phase":"applying","digest":"sha256:x"}`, want: "a newer state: applying", kept: `{"phase":"applying"}`},
		"no code":            {said: `{"phase":"failed","code":"A B"}`, want: "a newer state: failed", kept: `{"phase":"failed"}`},
		"bytes below none":   {said: `{"phase":"downloading","done":-1,"total":5}`, want: "a newer state: downloading", kept: `{"phase":"downloading"}`},
		"more than all":      {said: `{"phase":"downloading","done":6,"total":5}`, want: "a newer state: downloading", kept: `{"phase":"downloading"}`},
		"attempts below 0":   {said: `{"phase":"applying","attempt":-3}`, want: "a newer state: applying", kept: `{"phase":"applying"}`},
		"a long message": {
			said: `{"phase":"failed","message":"` + strings.Repeat("é", 300) + `"}`, want: "a newer state: failed",
			kept: `{"phase":"failed","message":"` + strings.Repeat("é", 256) + `…"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var x struct {
				Progress *artifacts.CurrentProgress `json:"progress"`
			}
			if err := json.Unmarshal([]byte(`{"progress":`+tc.said+`}`), &x); err != nil {
				t.Fatal(err)
			}
			got := ""
			if x.Progress.Uncommitted() {
				got = x.Progress.String()
			}
			if got != tc.want {
				t.Errorf("%s reads as %q, want %q", tc.said, got, tc.want)
			}
			if tc.kept == "" {
				tc.kept = tc.said
			}
			if kept, err := json.Marshal(x.Progress); err != nil || string(kept) != tc.kept {
				t.Errorf("kept is %s, %v, want %s", kept, err, tc.kept)
			}
		})
	}
}

// Whatever a device says is read, bounded, and reads again to the same.
func FuzzCurrentProgress(f *testing.F) {
	f.Add([]byte(`{"phase":"downloading","since":"2026-11-26T10:00:00Z","generation":3,"done":12,"total":40,"message":"é"}`))
	f.Add([]byte(`{"phase":"failed","attempt":-1,"until":"9999-12-31T23:59:59Z","code":"a-b"}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p, again artifacts.CurrentProgress
		if json.Unmarshal(data, &p) != nil {
			return
		}
		kept, err := json.Marshal(&p)
		if err != nil || len(kept) > 8192 {
			t.Fatalf("%d bytes of %q, %v", len(kept), data, err)
		}
		if err := json.Unmarshal(kept, &again); err != nil || again.String() != p.String() || again.Message != p.Message || strings.ContainsAny(p.String(), "\n<") {
			t.Errorf("%s reads as %q and again as %q, %v", data, p.String(), again.String(), err)
		}
	})
}
