package agenttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// refusal is a state, or a registry, that an agent must not follow.
type refusal struct {
	code codes.Code
	name string
	do   func(t *testing.T, w *World) // after generation 5 of the line-monitoring application was installed
}

// breakManifest publishes a signed state whose manifest was edited after packing.
func breakManifest(t *testing.T, w *World, edit func(string) string) {
	t.Helper()
	s := w.State(t, 6, nil, Line("2"))
	s.Manifest = []byte(edit(string(s.Manifest)))
	s.Descriptor.Digest, s.Descriptor.Size = digest.FromBytes(s.Manifest), int64(len(s.Manifest))
	w.Verifier.Sign(s.Descriptor.Digest)
	w.Registry.Push(Repository, s, Device.Tag())
}

// mix publishes a signed state one of whose layers is that of the generation before: what can be done where the policy asks
// for no signature, or by two publishers with one key.
func mix(t *testing.T, w *World, layer int) {
	t.Helper()
	old, s := w.State(t, 5, nil, Line("1")), w.State(t, 6, nil, Line("2"))
	var was, is ocispec.Manifest
	if err := errors.Join(json.Unmarshal(old.Manifest, &was), json.Unmarshal(s.Manifest, &is)); err != nil {
		t.Fatal(err)
	}
	is.Layers[layer] = was.Layers[layer]
	data, err := json.Marshal(is)
	if err != nil {
		t.Fatal(err)
	}
	w.Registry.Push(Repository, old)
	s.Manifest, s.Descriptor.Digest, s.Descriptor.Size = data, digest.FromBytes(data), int64(len(data))
	w.Verifier.Sign(s.Descriptor.Digest)
	w.Registry.Push(Repository, s, Device.Tag())
}

// signed publishes a signed state made with options.
func signed(t *testing.T, w *World, generation uint64, edit func(*artifacts.StateOptions), apps ...App) *artifacts.Artifact {
	t.Helper()
	s := w.State(t, generation, edit, apps...)
	w.Verifier.Sign(w.Offer(t, s))
	return s
}

// answerTo fails the requests that contain part.
func answerTo(w *World, part string, err error) {
	w.Registry.Fail(func(request string) error {
		if strings.Contains(request, part) {
			return fmt.Errorf("%s: %w", request, err)
		}
		return nil
	})
}

// tamper changes the bytes of answers to requests that contain part.
func tamper(w *World, part string) {
	w.Registry.Change(func(request string, data []byte) []byte {
		if strings.Contains(request, part) {
			data[len(data)/2] ^= 1
		}
		return data
	})
}

// verdict lets the policy say no to one kind of artifact.
func verdict(w *World, kind intake.Kind, err error) {
	w.SetPolicy("another")
	w.Verifier.Rule(func(k intake.Kind, repository string, d ocispec.Descriptor) (intake.Verdict, error) {
		if k == kind {
			return intake.Verdict{}, fmt.Errorf("%s@%s: %w", repository, d.Digest, err)
		}
		return intake.Verdict{SignedBy: []string{"release"}}, nil
	})
}

// unsignedBeside publishes a service that uses a second image, which alone is not signed. extra takes its reference.
func unsignedBeside(t *testing.T, w *World, extra string) {
	t.Helper()
	web, beside := w.Image("web:2"), w.Image("broker:1")
	w.Publish(t, 6, withComponent(func(c *Comp) {
		c.Services = []Service{{Name: "web", Image: "web:2"}, {Name: "beside", Image: "broker:1"}} // for the lock
		c.Compose = fmt.Sprintf("services:\n  web:\n    image: %s\n"+extra, web.Reference, beside.Reference)
	}))
	w.SetPolicy("another")
	w.Verifier.Rule(func(k intake.Kind, repository string, d ocispec.Descriptor) (intake.Verdict, error) {
		if k == intake.KindImage && d.Digest == beside.Digest {
			return intake.Verdict{}, fmt.Errorf("%s@%s: %w", repository, d.Digest, fault.ErrUnsigned)
		}
		return intake.Verdict{SignedBy: []string{"release"}}, nil
	})
}

func withComponent(edit func(*Comp)) App {
	a := Line("2")
	edit(&a.Components[0])
	return a
}

// firstChecks are those of checks 1 to 6.
func firstChecks() []refusal {
	return []refusal{
		{codes.SourceUnreachable, "registry away", func(_ *testing.T, w *World) { w.Registry.Fail(unreachable) }},
		{codes.SourceUnauthenticated, "credentials", func(_ *testing.T, w *World) { answerTo(w, "resolve", fault.ErrUnauthenticated) }},
		{codes.SourceDenied, "rights", func(_ *testing.T, w *World) { answerTo(w, "resolve", fault.ErrDenied) }},
		{codes.StateNotFound, "tag deleted", func(_ *testing.T, w *World) { answerTo(w, "resolve", fault.ErrNotFound) }},
		{codes.StateDigest, "manifest tampered", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			tamper(w, "manifest "+Repository)
		}},
		{codes.StateTooLarge, "manifest too large", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			w.Registry.Change(func(request string, data []byte) []byte {
				if strings.HasPrefix(request, "manifest "+Repository) {
					return make([]byte, 2<<20)
				}
				return data
			})
		}},
		{codes.StateUnsupported, "another artifact", func(t *testing.T, w *World) {
			a, err := artifacts.PackBundleArtifact(artifacts.BundleOptions{Deployments: [][]byte{w.Deployment(t, Line("2"))}})
			if err != nil {
				t.Fatal(err)
			}
			w.Verifier.Sign(a.Descriptor.Digest)
			w.Registry.Push(Repository, a, Device.Tag())
		}},
		{codes.SignatureMissing, "not signed", func(t *testing.T, w *World) {
			w.Offer(t, w.State(t, 6, nil, Line("2")))
		}},
		{codes.SignatureInvalid, "signed by someone else", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindState, fault.ErrBadSignature)
		}},
		{codes.SignatureThreshold, "too few signers", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindState, fault.ErrThreshold)
		}},
		{codes.KeyExpired, "signed with an expired key", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindState, fault.ErrKeyExpired)
		}},
		{codes.KeyRevoked, "signed with a revoked key", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindState, fault.ErrKeyRevoked)
		}},
		{codes.DigestRevoked, "content revoked", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindState, fault.ErrDigestRevoked)
		}},
		{codes.AttestationMissing, "not attested", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindState, fault.ErrNoAttestation)
		}},
		{codes.AttestationInvalid, "attested by someone else", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindState, fault.ErrBadAttestation)
		}},
		{codes.SignatureRejected, "no rule", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindState, fault.ErrRejected)
		}},
		{codes.SourceUnreachable, "signature cannot be fetched", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindState, fault.ErrTemporary)
		}},
		{codes.WrongDevice, "state of another device", func(t *testing.T, w *World) {
			a := Line("2")
			a.DeviceID = "press-08"
			signed(t, w, 6, func(o *artifacts.StateOptions) { o.Device = "press-08" }, a)
		}},
		{codes.Rollback, "older generation", func(t *testing.T, w *World) { signed(t, w, 4, nil, Line("2")) }},
		{codes.GenerationConflict, "same generation with other content", func(t *testing.T, w *World) { signed(t, w, 5, nil, Line("2")) }},
		{codes.Expired, "expired", func(t *testing.T, w *World) {
			signed(t, w, 6, func(o *artifacts.StateOptions) { o.Expires = w.Now().Add(-time.Minute) }, Line("2"))
		}},
	}
}

// stateChecks are those of check 7.
func stateChecks() []refusal {
	return []refusal{
		{codes.StateMixed, "State Manifest of another generation", func(t *testing.T, w *World) { mix(t, w, 0) }},
		{codes.StateMixed, "bundle of another generation", func(t *testing.T, w *World) { mix(t, w, 1) }},
		{codes.StateMixed, "deployment of another generation", func(t *testing.T, w *World) { mix(t, w, 2) }},
		{codes.StateInvalid, "repeats no digest", func(t *testing.T, w *World) {
			breakManifest(t, w, func(s string) string {
				return strings.Replace(s, `"dev.longshore.generation":"6"`, `"dev.longshore.generation":"6","dev.longshore.repeats":"generation 4"`, 1)
			})
		}},
		{codes.StateMixed, "annotation and manifest differ", func(t *testing.T, w *World) {
			breakManifest(t, w, func(s string) string {
				return strings.Replace(s, `"dev.longshore.generation":"6"`, `"dev.longshore.generation":"7"`, 1)
			})
		}},
		{codes.StateInvalid, "annotation is no number", func(t *testing.T, w *World) {
			breakManifest(t, w, func(s string) string {
				return strings.Replace(s, `"dev.longshore.generation":"6"`, `"dev.longshore.generation":"six"`, 1)
			})
		}},
		{codes.ContentDigest, "deployment tampered", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			tamper(w, "blob "+Repository)
		}},
		{codes.ContentMissing, "deployment missing", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			answerTo(w, "blob "+Repository, fault.ErrNotFound)
		}},
		{codes.SourceUnreachable, "registry goes away in the middle", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			answerTo(w, "blob", fault.ErrTemporary)
		}},
		{codes.DeploymentInvalid, "parameters that contradict", func(t *testing.T, w *World) {
			a := Line("2")
			a.Parameters = "    a:\n      value: x\n      targets: [{pointer: P, components: [line-monitor]}]\n" +
				"    b:\n      value: \"y\"\n      targets: [{pointer: P, components: [line-monitor]}]\n"
			signed(t, w, 6, nil, a)
		}},
		{codes.DeviceUnfit, "too little memory", func(t *testing.T, w *World) {
			a := Line("2")
			a.Extra = "    deviceConstraints:\n      capacityRequirements:\n        memory: 64Gi\n"
			signed(t, w, 6, nil, a)
		}},
	}
}

// contentChecks are those of checks 8 and 9.
func contentChecks() []refusal {
	return []refusal{
		{codes.ComponentUnpinned, "component by tag", func(t *testing.T, w *World) {
			signed(t, w, 6, nil, withComponent(func(c *Comp) { c.Unpinned = true }))
		}},
		{codes.ComponentMissing, "component missing", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			answerTo(w, "manifest "+components, fault.ErrNotFound)
		}},
		{codes.ComponentDigest, "archive tampered", func(t *testing.T, w *World) {
			w.Publish(t, 6, withComponent(func(c *Comp) { c.Files = Large() }))
			tamper(w, "blob "+components)
		}},
		{codes.ComponentUnsigned, "component not signed", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindComponent, fault.ErrUnsigned)
		}},
		{codes.ComponentSignature, "component signed by someone else", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindComponent, fault.ErrBadSignature)
		}},
		{codes.ComponentRejected, "component rejected", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindComponent, fault.ErrRejected)
		}},
		{codes.ComponentInvalid, "field that cannot be honoured", func(t *testing.T, w *World) {
			signed(t, w, 6, nil, withComponent(func(c *Comp) { c.Services[0].Extra = "    build: .\n" }))
		}},
		{codes.ComponentUnsupported, "helm", func(t *testing.T, w *World) {
			a := Line("2")
			a.Type = "helm"
			signed(t, w, 6, nil, a)
		}},
		{codes.PortConflict, "one port twice", func(t *testing.T, w *World) {
			ports := "    ports: [\"18080:80\"]\n"
			b := other()
			b.Components[0].Services[0].Extra = ports
			signed(t, w, 6, nil, withComponent(func(c *Comp) { c.Services[0].Extra += ports }), b)
		}},
		{codes.ImageUnpinned, "image by tag", func(t *testing.T, w *World) {
			signed(t, w, 6, nil, withComponent(func(c *Comp) { c.NoLock = true }))
		}},
		{codes.ImageUnsigned, "image not signed", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindImage, fault.ErrUnsigned)
		}},
		{codes.ImageSignature, "image signed by someone else", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindImage, fault.ErrBadSignature)
		}},
		{codes.ImageRejected, "image rejected", func(t *testing.T, w *World) {
			w.Publish(t, 6, Line("2"))
			verdict(w, intake.KindImage, fault.ErrRejected)
		}},
		{codes.ImageUnsigned, "mounted image not signed", func(t *testing.T, w *World) {
			unsignedBeside(t, w, "    volumes: [{type: image, source: %q, target: /beside}]\n")
		}},
		{codes.ImageUnsigned, "image that runs first not signed", func(t *testing.T, w *World) {
			unsignedBeside(t, w, "    pre_start: [{image: %q, command: [\"true\"]}]\n")
		}},
		{codes.ImagePlatform, "image for another platform", func(t *testing.T, w *World) {
			signed(t, w, 6, nil, withComponent(func(c *Comp) { c.Services[0].Image = "foreign:1" }))
		}},
		{codes.ImageMissing, "image missing", func(t *testing.T, w *World) {
			signed(t, w, 6, nil, withComponent(func(c *Comp) { c.Services[0].Image = "missing:1" }))
		}},
		{codes.ImageDigest, "image tampered", func(t *testing.T, w *World) {
			signed(t, w, 6, nil, withComponent(func(c *Comp) { c.Services[0].Image = "tampered:1" }))
		}},
		{codes.ImagePull, "image cannot be unpacked", func(t *testing.T, w *World) {
			signed(t, w, 6, nil, withComponent(func(c *Comp) { c.Services[0].Image = "broken:1" }))
		}},
		{codes.DiskFull, "disk full", func(t *testing.T, w *World) {
			signed(t, w, 6, nil, withComponent(func(c *Comp) { c.Services[0].Image = "huge:1" }))
		}},
	}
}

// Refusals goes through everything that checks 1 to 9 refuse. Each has its code in the answer to sync, in the status with a
// hint, and with the fleet endpoint; and each leaves the running workloads exactly as they are, also when the agent starts
// anew, until a good generation comes. Env.Image must answer "foreign:1" (locked for another platform only), "missing:1",
// "tampered:1", "broken:1" and "huge:1": a pull of them ends as the name says.
func Refusals(t *testing.T, s Setup) {
	s.refusals(t, slices.Concat(firstChecks(), stateChecks(), contentChecks()))
}

func (s Setup) refusals(t *testing.T, all []refusal) {
	var scenes []scene
	unseen := 0
	for _, r := range all {
		if !r.seen() {
			if unseen++; s.Stride > 1 && unseen%s.Stride != 1 {
				continue
			}
		}
		scenes = append(scenes, scene{string(r.code) + "/" + r.name, func(t *testing.T) {
			s.scenario(t, func(t *testing.T, w *World) { r.run(t, w) })
		}})
	}
	s.each(t, scenes)
}

// seen reports whether the runtime takes part in a refusal: it is asked about the device, ports and images, or is to pull one.
func (r refusal) seen() bool {
	return r.code == codes.DeviceUnfit || r.code == codes.PortConflict || r.code == codes.DiskFull || strings.HasPrefix(string(r.code), "image-")
}

func (r refusal) run(t *testing.T, w *World) {
	w.Edit = func(o *agent.Options) { o.RequirePins = true }
	good := w.Publish(t, 5, Line("1"))
	a := w.Start(t)
	if res := w.Sync(t, a); res.Outcome != status.SyncInstalled {
		t.Fatalf("sync to what shall run on = %+v", res)
	}
	before := w.Observe(t)
	check := w.mark(t, Line("1"))
	r.do(t, w)
	look := func(a *Running) {
		t.Helper()
		res := w.Sync(t, a)
		if res.Code != r.code || res.Outcome == status.SyncInstalled || res.Outcome == status.SyncUnchanged || res.Message == "" {
			t.Errorf("sync = %+v, want code %s", res, r.code)
		}
		w.Same(t, before)
		st := a.Status()
		if turned := st.Deployments[0].Refused; turned != nil {
			if turned.Generation != 6 || turned.RunningGeneration != 5 || turned.Code != r.code || st.Deployments[0].State != margo.StateFailed {
				t.Errorf("refused revision %+v, want that of generation 6, and that of 5 running", turned)
			}
		} else if st.Running.Digest != good {
			t.Errorf("running %+v, want generation 5", st.Running)
		}
		if st.Committed.Digest != good {
			t.Errorf("committed %+v, want generation 5", st.Committed)
		}
		if len(st.Problems) == 0 || st.Problems[0].Code != r.code || st.Problems[0].Hint == "" || st.Problems[0].Message == "" {
			t.Errorf("problems %+v, want %s with a hint first", st.Problems, r.code)
		}
		if alarmed := slices.ContainsFunc(st.Security, func(s status.SecurityEvent) bool { return s.Code == r.code }); alarmed != r.code.Attack() {
			t.Errorf("security events %+v after %s", st.Security, r.code)
		}
		if res.Outcome == status.SyncRefused {
			w.delivered(t, a)
			if x := w.Extra(t); x.Refused == nil || x.Refused.Code != string(r.code) || x.AcceptedGeneration != 5 {
				t.Errorf("the fleet endpoint knows %+v", x)
			}
		}
	}
	look(a)
	a.Stop(t)
	w.Same(t, before)
	a = w.Start(t)
	look(a)

	w.Registry.Fail(nil)
	w.Registry.Change(nil)
	if w.Managed() {
		w.Manager.Intercept(nil)
		w.Manager.Accept(string(Device))
	}
	w.Verifier.Rule(nil)
	w.SetPolicy("")
	w.Publish(t, 9, Line("2"))
	if res := w.Sync(t, a); res.Outcome != status.SyncInstalled || res.Generation != 9 {
		t.Errorf("sync to a good generation = %+v", res)
	}
	check(t)
	w.allRun(t, line+"/broker", line+"/sensor", line+"/web")
	if p := a.Status().Problems; len(p) != 0 {
		t.Errorf("problems left: %+v", p)
	}
}

// ErrBroken is what pulling "broken:1" ends in: an error that has no name.
var ErrBroken = errors.New("layer is not a tar archive")

// unreachable is what a registry says that is not there.
func unreachable(request string) error {
	return fmt.Errorf("%s: connection refused: %w", strings.SplitN(request, " ", 2)[0], fault.ErrTemporary)
}
