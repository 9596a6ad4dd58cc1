package artifacts_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/uuid"

	"github.com/longshore-dev/longshore/artifacts"
)

// What the descriptor of a State Manifest or of a Compose Archive carries is not asked for, as long as it is what the descriptor names; the
// blobs are there as well.
func TestCarried(t *testing.T) {
	state := pack(t, options())
	component, err := artifacts.PackComponent(project(), artifacts.ComponentOptions{Name: "a", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	for kind, a := range map[string]*artifacts.Artifact{artifacts.TypeState: state, artifacts.TypeComposeArchive: component} {
		content := a.Blobs[1].Data
		if d := a.Blobs[1].Descriptor; d.MediaType != kind || d.Data != nil || int(d.Size) != len(content) {
			t.Fatalf("the blob is %+v, want %s without data", d, kind)
		}
		written := `"data":"` + base64.StdEncoding.EncodeToString(content) + `"`
		other := slices.Clone(content)
		other[len(other)/2]++
		for name, c := range map[string]struct {
			data  string
			asked bool
		}{
			"as it is written": {written, false},
			"other data":       {`"data":"` + base64.StdEncoding.EncodeToString(other) + `"`, true},
			"longer data":      {`"data":"` + base64.StdEncoding.EncodeToString(append(other, ' ')) + `"`, true},
			"no base64":        {`"data":"{}"`, true},
			"no text":          {`"data":7`, true},
			"empty":            {`"data":""`, true},
			"none":             {`"x":""`, true},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				if !bytes.Contains(a.Manifest, []byte(written)) {
					t.Fatalf("%s is not in %s", written, a.Manifest)
				}
				asked, err := readFirst(kind, bytes.Replace(a.Manifest, []byte(written), []byte(c.data), 1), a)
				if err != nil || slices.Contains(asked, kind) != c.asked {
					t.Errorf("Read = %v, asked for %v", err, asked)
				}
			})
		}
	}
}

// readFirst reads an artifact by a manifest of it, and returns what it asked for.
func readFirst(kind string, manifest []byte, a *artifacts.Artifact) (asked []string, err error) {
	if kind == artifacts.TypeComposeArchive {
		x, err := artifacts.OpenComponent(manifest)
		if err == nil {
			_, err = x.Read(from(a, &asked))
		}
		return asked, err
	}
	x, err := artifacts.OpenState(manifest)
	if err == nil {
		_, err = x.Read(from(a, &asked))
	}
	return asked, err
}

// Large ones are not carried.
func TestCarriedIsBounded(t *testing.T) {
	var documents [][]byte
	for range 300 {
		documents = append(documents, document(uuid.NewString(), "press-07"))
	}
	state := pack(t, artifacts.StateOptions{Device: "press-07", Generation: 1, Deployments: documents})
	noise := make([]byte, 0, 64<<10)
	for len(noise) < 64<<10 {
		noise = append(noise, uuid.NewString()...)
	}
	component, err := artifacts.PackComponent(fstest.MapFS{"compose.yaml": {Data: []byte("services: {}\n")}, "noise": {Data: noise}}, artifacts.ComponentOptions{Name: "a", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	for kind, a := range map[string]*artifacts.Artifact{artifacts.TypeState: state, artifacts.TypeComposeArchive: component} {
		asked, err := readFirst(kind, a.Manifest, a)
		if err != nil || !slices.Contains(asked, kind) || strings.Count(string(a.Manifest), `"data"`) != 1 { // that of the config
			t.Errorf("Read of %d bytes of %s = %v, asked for %v", a.Blobs[1].Descriptor.Size, kind, err, asked)
		}
	}
}

// The deployments of a state are carried as long as all of them are small together; its bundle is not, which has the same documents.
func TestCarriedDeployments(t *testing.T) {
	for n, carried := range map[int]bool{1: true, 4: true, 30: false} {
		var documents [][]byte
		for range n {
			documents = append(documents, document(uuid.NewString(), "press-07"))
		}
		a := pack(t, artifacts.StateOptions{Device: "press-07", Generation: 1, Deployments: documents})
		x, err := artifacts.OpenState(a.Manifest)
		if err != nil {
			t.Fatal(err)
		}
		var asked []string
		if _, err := x.Read(from(a, &asked)); err != nil || carried != (len(asked) == 0) || !carried && len(asked) != n || x.Bundle.Data != nil {
			t.Errorf("%d deployments: Read = %v, asked for %v", n, err, asked)
		}
		bundle := a.Blobs[2]
		old := fmt.Sprintf(`"digest":%q,`, bundle.Descriptor.Digest)
		manifest := strings.Replace(string(a.Manifest), old, old+fmt.Sprintf(`"data":%q,`, base64.StdEncoding.EncodeToString(bundle.Data)), 1)
		if x, err = artifacts.OpenState([]byte(manifest)); err != nil || bundle.Descriptor.MediaType != artifacts.TypeBundle || len(manifest) == len(a.Manifest) || x.Bundle.Data != nil {
			t.Errorf("a bundle in its descriptor: %v, %+v", err, x.Bundle)
		}
	}
}
