package artifacts_test

import (
	"fmt"
	"io/fs"
	"testing/fstest"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// blobs answers from an artifact in memory, as a registry would.
func blobs(a *artifacts.Artifact) func(ocispec.Descriptor) ([]byte, error) {
	return func(d ocispec.Descriptor) ([]byte, error) {
		for _, b := range a.Blobs {
			if b.Descriptor.Digest == d.Digest {
				return b.Data, nil
			}
		}
		return nil, fmt.Errorf("no blob %s", d.Digest)
	}
}

func ExamplePackState() {
	a, err := artifacts.PackState(artifacts.StateOptions{Device: "press-07", Generation: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(a.Descriptor.ArtifactType, len(a.Blobs), "blobs")
	_, err = artifacts.PackState(artifacts.StateOptions{Device: "press-07", Generation: 1, Deployments: [][]byte{[]byte("id: 7\n")}})
	fmt.Println(err)
	// Output:
	// application/vnd.margo.manifest.v1+json 2 blobs
	// pack state 1 of press-07: deployment[0]:1:1: metadata is missing
	// deployment[0]:1:1: spec is missing
	// deployment[0]:1:5: id: must be a string, is a number
}

func ExampleOpenState() {
	a, err := artifacts.PackState(artifacts.StateOptions{Device: "press-07", Generation: 42, Deployments: [][]byte{document(idA, "press-07")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	x, err := artifacts.OpenState(a.Manifest)
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := x.Read(blobs(a))
	fmt.Println(x.Device, x.Generation, s.Deployments[0].Document.Metadata.Name, err)
	// Output: press-07 42 line-monitor <nil>
}

func ExamplePackComponent() {
	dir := fstest.MapFS{"compose.yaml": {Data: []byte("services: {}\n")}}
	a, err := artifacts.PackComponent(dir, artifacts.ComponentOptions{Name: "line-monitor", Version: "1.4.0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	x, err := artifacts.OpenComponent(a.Manifest)
	fmt.Println(x.Version, x.Archive.MediaType, err)
	// Output: 1.4.0 application/vnd.org.margo.component.compose.tar+gzip <nil>
}

func ExampleReadArchive() {
	dir := fstest.MapFS{"compose.yaml": {Data: []byte("services: {}\n")}, "config/a.conf": {Data: []byte("a")}}
	a, err := artifacts.PackComponent(dir, artifacts.ComponentOptions{Name: "line-monitor", Version: "1.4.0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	archive, err := artifacts.ReadArchive(a.Blobs[1].Data)
	if err != nil {
		fmt.Println(err)
		return
	}
	conf, err := fs.ReadFile(archive.FS, "config/a.conf")
	fmt.Println(archive.Root, string(conf), err)
	// Output: line-monitor a <nil>
}

func ExampleReadBundle() {
	data, err := artifacts.PackBundle([][]byte{document(idB, "press-08"), document(idA, "press-07")})
	if err != nil {
		fmt.Println(err)
		return
	}
	ds, err := artifacts.ReadBundle(data)
	for _, d := range ds {
		fmt.Println(d.Document.ID, d.Document.Metadata.DeviceID)
	}
	fmt.Println(err)
	// Output:
	// a3e2f5dc-912e-494f-8395-52cf3769bc06 press-07
	// ad9b614e-8912-45f4-a523-372358765def press-08
	// <nil>
}

func ExampleOpenBundle() {
	a, err := artifacts.PackBundleArtifact(artifacts.BundleOptions{Name: "hall-3", Version: "1.0.0", Deployments: [][]byte{document(idA, "press-07")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	x, err := artifacts.OpenBundle(a.Manifest)
	fmt.Println(x.Name, x.Version, len(x.Deployments), err)
	// Output: hall-3 1.0.0 1 <nil>
}

func ExamplePackPackage() {
	a, d, err := artifacts.PackPackage(application(), artifacts.PackageOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	x, err := artifacts.OpenPackage(a.Manifest)
	fmt.Println(d.ID, d.Metadata.Version, len(x.Resources), "resources", err)
	// Output: line-monitor 1.4.0 2 resources <nil>
}

func ExampleParseLock() {
	_, err := artifacts.ParseLock("longshore.lock", []byte(`{"version": 1, "images": [{"reference": "caddy:2.10", "digest": "latest", "platforms": []}]}`))
	fmt.Println(err)
	// Output: longshore.lock:1:65: images[0].digest: "latest" is not a digest of the form "sha256:" and 64 lower-case hexadecimal digits
}

func ExampleDeviceID_Tag() {
	for _, id := range []artifacts.DeviceID{"press-07", "gateway-1/press-07", "press~07"} {
		fmt.Println(artifacts.HistoryTag(id.Tag(), 42))
	}
	// Output:
	// press-07.v42
	// gateway-1__press-07.v42
	// d-0aa4429fc405e35b1899ef59bbd0d5e6.v42
}

func ExampleReadDeployment() {
	d, err := artifacts.ReadDeployment("line-monitor.yaml", document(idA, "press-07"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.Document.Metadata.DeviceID, d.Digest)
	// Output: press-07 sha256:db239b53ba2acb0da48a3a679d82a12af1edeee2c204154eda04472a91d65d8a
}

func ExampleParseDeviceID() {
	_, err := artifacts.ParseDeviceID("press 07")
	fmt.Println(err)
	fmt.Println(fault.Hint(err))
	// Output:
	// "press 07" is not a device id: invalid
	// use letters, digits and ". _ ~ -", and "/" between a gateway and its devices
}

func ExamplePackTrust() {
	a, err := artifacts.PackTrust(artifacts.TrustOptions{Version: 1, Policy: []byte("version: 1\n")})
	if err != nil {
		fmt.Println(err)
		return
	}
	x, err := artifacts.OpenTrust(a.Manifest)
	if err != nil {
		fmt.Println(err)
		return
	}
	policy, _, err := x.Read(blobs(a))
	fmt.Printf("%s %q %v\n", artifacts.TrustTag(x.Version), policy, err)
	// Output: v1 "version: 1\n" <nil>
}
