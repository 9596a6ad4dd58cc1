package desired_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

// A client without a state is to run nothing, by the first manifest of its sequence. What follows is above it, and when the
// publisher's numbers are, it is what was pushed.
func TestNoStateYet(t *testing.T) {
	w := newWorld(t)
	a := w.get("press-07", "/api/v1/deployments")
	if want := `{"bundle":null,"deployments":[],"manifestVersion":1}`; a.code != 200 || string(a.body) != want {
		t.Fatalf("GET deployments = %d %s, want %s", a.code, a.body, want)
	}
	w.later()
	w.manifest("press-07", 1)
	w.start()
	w.manifest("press-07", 1)
	for generation := uint64(1); generation < 3; generation++ {
		x, err := artifacts.OpenState(w.publish("press-07", generation, "web", "db").Manifest)
		if err != nil {
			t.Fatal(err)
		}
		w.later()
		m := w.manifest("press-07", generation+1)
		if m.Bundle.Digest != x.Bundle.Digest {
			t.Errorf("bundle of generation %d = %s, want %s", generation, m.Bundle.Digest, x.Bundle.Digest)
		}
		w.complete("press-07", m)
		w.later()
		w.manifest("press-07", generation+1)
		w.start()
		w.complete("press-07", w.manifest("press-07", generation+1))
	}
	pushed := w.publish("press-07", 9, "web")
	w.later()
	w.manifest("press-07", 9)
	if got := w.get("press-07", "/api/v1/deployments"); !bytes.Equal(got.body, pushed.Blobs[1].Data) && !bytes.Equal(got.body, pushed.Blobs[0].Data) {
		t.Errorf("manifest = %s, not what was pushed", got.body)
	}
}

// The manifests of a client of several devices are one sequence, from 1, and each has everything of all devices.
func TestSeveralDevices(t *testing.T) {
	w := newWorld(t)
	const line = "press-07,press-08,press-09"
	w.publish("press-07", 1, "web", "db")
	w.publish("press-08", 1, "web")
	one := w.manifest(line, 1)
	if len(one.Deployments) != 3 {
		t.Errorf("%d deployments, want 3", len(one.Deployments))
	}
	w.complete(line, one)
	w.later()
	w.manifest(line, 1)
	for i, change := range []func(){
		func() { w.publish("press-08", 2, "web", "sensor") },
		func() { w.publish("press-09", 1, "web") }, // it had no state
		func() { w.publish("press-07", 2); w.publish("press-09", 2) },
		func() { w.publish("press-08", 3) }, // nothing is left
		func() { w.publish("press-07", 3, "web") },
	} {
		change()
		w.later()
		m := w.manifest(line, uint64(i+2))
		w.complete(line, m)
		if i == 3 && (m.Bundle != nil || len(m.Deployments) > 0) {
			t.Errorf("nothing is to run: %+v", m)
		}
		w.start()
		w.later()
		w.complete(line, w.manifest(line, uint64(i+2)))
	}
	// Each of the devices may as well be a client of its own, with its own sequence.
	w.manifest("press-08", 3)
	// A device that the client has no more is out of its manifest.
	w.later()
	m := w.manifest("press-08,press-09", 7)
	if len(m.Deployments) > 0 {
		t.Errorf("deployments of a device that is another client's: %+v", m.Deployments)
	}
}

// A gateway has the desired state of the children that it registered, in its one sequence; a child that registered itself is a client
// of its own. What is for any child ("gw/*") is the gateway's to place.
func TestGatewayHasStatesOfItsChildren(t *testing.T) {
	w := newWorld(t)
	register := func(id, by string) {
		t.Helper()
		if _, err := w.db.PutCapabilities(t.Context(), store.Capabilities{Device: id, By: by, Body: []byte("{}"), At: w.now()}); err != nil {
			t.Fatal(err)
		}
	}
	register("gw", "gw")
	anywhere := bytes.Replace(document(t, "gw", "roaming", "1.0.0"), []byte("deviceId: gw"), []byte("deviceId: gw/*"), 1)
	w.push(artifacts.StateOptions{Device: "gw", Generation: 1, Deployments: [][]byte{anywhere}})
	w.publish("gw/a", 1, "web")
	w.publish("gw/b", 1, "web")
	w.manifest("gw", 1) // neither is registered
	register("gw/a", "gw")
	register("gw/b", "gw/b")
	w.later()
	m := w.manifest("gw", 2)
	if len(m.Deployments) != 2 {
		t.Errorf("deployments %+v, want the gateway's and those of gw/a", m.Deployments)
	}
	w.complete("gw", m)
	w.complete("gw/b", w.manifest("gw/b", 1))
	w.publish("gw/a", 2, "web", "db")
	w.later()
	w.complete("gw", w.manifest("gw", 3))
	if err := w.db.DeleteDevice(t.Context(), "gw/a"); err != nil {
		t.Fatal(err)
	}
	w.later()
	if m := w.manifest("gw", 4); len(m.Deployments) != 1 {
		t.Errorf("deployments after the child is gone: %+v", m.Deployments)
	}
}

// A database that was lost takes no version back that follows from the generations.
func TestDatabaseLostVersions(t *testing.T) {
	w := newWorld(t)
	const line = "press-07,press-08"
	w.publish("press-07", 4, "web")
	w.publish("press-08", 5, "web")
	w.manifest(line, 8)
	w.publish("press-08", 6, "web")
	w.later()
	w.manifest(line, 9)
	db, err := store.Open(t.Context(), t.TempDir()+"/fleet.db", w.discard())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	w.db = &counting{SQLite: db}
	w.start()
	w.complete(line, w.manifest(line, 9))
}

// A client that was away while there were several manifests gets the newest, whole; what only the ones between named is nobody's, and its
// late report about the first one takes no version back.
func TestClientSkipsVersions(t *testing.T) {
	w := newWorld(t)
	w.publish("press-07", 1, "web")
	w.manifest("press-07", 1)
	for g := range uint64(3) {
		w.publish("press-07", 2+g, "web", fmt.Sprint("db-", g))
		w.later()
	}
	m := w.manifest("press-07", 4)
	w.complete("press-07", m)
	id := m.Deployments[0].DeploymentID
	body := fmt.Sprintf(`{"deploymentId":%q,"adoptedManifestVersion":1,"status":{"state":"installed"},"components":[]}`, id)
	if a := w.send("POST", "press-07", "/api/v1/deployments/"+id+"/status", body); a.code != 201 {
		t.Errorf("POST status = %d %s", a.code, a.body)
	}
	w.later()
	w.complete("press-07", w.manifest("press-07", 4))
}

// A client whose manifests were numbered above the generation tells the version that it has, and is served what is above it.
func TestDatabaseLostAdoptedVersion(t *testing.T) {
	w := newWorld(t)
	w.manifest("press-07", 1) // nothing yet
	w.publish("press-07", 1, "web")
	w.later()
	w.manifest("press-07", 2)
	w.publish("press-07", 2, "web", "db")
	w.later()
	before := w.manifest("press-07", 3)
	db, err := store.Open(t.Context(), t.TempDir()+"/fleet.db", w.discard())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	w.db = &counting{SQLite: db}
	clear(w.disk.data)
	w.start()
	w.manifest("press-07", 2) // below what the client has, which rejects it
	report := func(version uint64) {
		t.Helper()
		id := before.Deployments[0].DeploymentID
		body := fmt.Sprintf(`{"deploymentId":%q,"adoptedManifestVersion":%d,"status":{"state":"installed"},"components":[]}`, id, version)
		if a := w.send("POST", "press-07", "/api/v1/deployments/"+id+"/status", body); a.code != 201 && a.code != 200 {
			t.Fatalf("POST status = %d %s", a.code, a.body)
		}
	}
	report(math.MaxUint64) // there is none above: it does not count
	report(3)
	w.manifest("press-07", 2) // until the next look
	w.later()
	m := w.manifest("press-07", 4)
	if len(m.Deployments) != 2 {
		t.Errorf("manifest %+v", m)
	}
	w.complete("press-07", m)
	report(4)
	w.later()
	w.manifest("press-07", 4)
	w.publish("press-07", 5, "web")
	w.later()
	w.manifest("press-07", 5) // as it was pushed
}

// What cannot be in one manifest is not, and the one before is served on.
func TestSeveralDevicesThatCannotBeOneManifest(t *testing.T) {
	same := document(t, "press-07", "web", "1.0.0")
	for name, c := range map[string]struct {
		documents [][]byte
		tell      string
	}{
		"the same deployment twice": {[][]byte{bytes.ReplaceAll(same, []byte("deviceId: press-07"), []byte("deviceId: press-08"))}, "both have deployment"},
		"a document for no device":  {[][]byte{withoutDevice(document(t, "press-08", "web", "1.0.0"))}, "no metadata.deviceId"},
		"too many":                  {many(t, "press-08", 4096), "4097 deployments of 2 devices are for one client, which may have 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			const line = "press-07,press-08"
			w.publish("press-07", 1, "web")
			w.complete(line, w.manifest(line, 1))
			w.push(artifacts.StateOptions{Device: "press-08", Generation: 1, Deployments: c.documents})
			w.logs(line, c.tell)
			w.complete(line, w.manifest(line, 1))
			w.publish("press-08", 2, "web")
			w.later()
			w.complete(line, w.manifest(line, 2))
		})
	}
}

// A state of as many deployments as one artifact may have.
func TestManyDeployments(t *testing.T) {
	w := newWorld(t)
	w.push(artifacts.StateOptions{Device: "press-07", Generation: 1, Deployments: many(t, "press-07", 4000)})
	w.logs("press-07", "msg=serving")
	m := w.manifest("press-07", 1)
	if len(m.Deployments) != 4000 {
		t.Errorf("%d deployments, want 4000", len(m.Deployments))
	}
	for _, d := range []margo.DeploymentRef{m.Deployments[0], m.Deployments[3999]} {
		if a := w.get("press-07", d.URL); a.code != 200 || digest.FromBytes(a.body) != d.Digest {
			t.Errorf("GET %s = %d", d.URL, a.code)
		}
	}
}

// More deployments than one client may have are a problem document that says so, and nothing is half done: the manifest is the one before.
func TestTooManyDeployments(t *testing.T) {
	w := newWorld(t)
	for _, device := range []artifacts.DeviceID{"press-07", "press-08", "press-09"} {
		w.push(artifacts.StateOptions{Device: device, Generation: 1, Deployments: many(t, device, 1400)})
	}
	const line = "press-07,press-08,press-09"
	w.logs(line, "give some of the devices another client")
	a := w.get(line, "/api/v1/deployments")
	if a.code != 500 || !bytes.Contains(a.body, []byte("4200 deployments of 3 devices are for one client, which may have 4096")) {
		t.Errorf("GET deployments = %d %s", a.code, a.body)
	}
	w.publish("press-07", 2, "web")
	w.publish("press-08", 2, "web")
	w.publish("press-09", 2)
	w.later()
	w.complete(line, w.manifest(line, 4))
}

func many(t *testing.T, device artifacts.DeviceID, n int) [][]byte {
	t.Helper()
	one := document(t, device, "web", "1.0.0")
	id := artifacts.DeploymentID(device, "web")
	out := make([][]byte, n)
	for i := range out {
		out[i] = bytes.Replace(one, []byte(id), []byte(artifacts.DeploymentID(device, fmt.Sprint("app-", i))), 1)
	}
	return out
}

// withoutDevice makes a document of the 1.0.0 line, which says nothing of devices.
func withoutDevice(doc []byte) []byte {
	out := [][]byte{[]byte("apiVersion: application.margo.org/v1alpha1\nkind: ApplicationDeployment\n")}
	for _, l := range bytes.SplitAfter(doc, []byte("\n")) {
		if !bytes.Contains(l, []byte("deviceId")) {
			out = append(out, l)
		}
	}
	return bytes.Join(out, nil)
}
