package artifacts_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
)

// What cannot be read, or is not in order, is left out; of more than the newest it is known where they end.
func TestTransitions(t *testing.T) {
	one := func(sequence int, more string) string {
		return fmt.Sprintf(`{"sequence":%d,"deployment":"00000000-0000-4000-8000-000000000001","state":"installed"%s}`, sequence, more)
	}
	var many []string
	for i := range artifacts.MaxTransitions + 3 {
		many = append(many, one(i+1, ""))
	}
	for name, tt := range map[string]struct {
		said  string
		after uint64
		want  []uint64
	}{
		"an older agent":   {`{}`, 0, nil},
		"no object":        {`{"transitions":[]}`, 0, nil},
		"in order":         {`{"transitions":{"after":2,"list":[` + one(3, "") + "," + one(7, `,"error":{"code":"exited"}`) + `]}}`, 2, []uint64{3, 7}},
		"not in order":     {`{"transitions":{"after":2,"list":[` + one(2, "") + "," + one(7, "") + "," + one(6, "") + "," + one(7, "") + "," + one(900, "") + `]}}`, 2, []uint64{7}},
		"cannot be read":   {`{"transitions":{"list":[null,7,` + one(3, `,"at":"today"`) + "," + strings.Replace(one(4, ""), "installed", "well", 1) + "," + strings.Replace(one(5, ""), "0000-4", "", 1) + "," + one(6, "") + `]}}`, 0, []uint64{6}},
		"more than newest": {`{"transitions":{"list":[` + strings.Join(many, ",") + `]}}`, 3, nil},
	} {
		c := &artifacts.CurrentState{Sequence: 100, Capabilities: json.RawMessage(`{"x-longshore-extensions":` + tt.said + `}`)}
		got := c.Transitions()
		var sequences []uint64
		for _, x := range got.List {
			sequences = append(sequences, x.Sequence)
		}
		if tt.want == nil && got.After == 3 && len(got.List) == artifacts.MaxTransitions && sequences[0] == 4 {
			continue
		}
		if got.After != tt.after || fmt.Sprint(sequences) != fmt.Sprint(tt.want) {
			t.Errorf("%s: after %d, %v, want after %d, %v", name, got.After, sequences, tt.after, tt.want)
		}
	}
}
