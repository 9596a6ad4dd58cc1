// Package artifacts makes and reads what travels through a registry: device states, deployment bundles, Compose
// components, application packages, and the names that they go by.
//
// It is pure: no network, no clock, no file system but the fs.FS that it is given; tests in testenv/rules hold that.
// Packing is reproducible: the same input gives the same digest. Reading trusts nothing: sizes are bounded, types and
// digests checked, archives held in memory and refused when they are not safe to extract.
//
// Entry points: [PackState] and [OpenState] for a device's state, [PackComponent] and [ReadArchive] for Compose,
// [PackBundle] and [ReadBundle] for a set of deployments, [PackPackage] for an application, [PackTrust] for a trust policy
// that travels. The documents inside are those of package margo.
package artifacts

import (
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Artifact types and media types.
const (
	// TypeState is the artifact type of a device state, and the media type of the State Manifest in it.
	TypeState = "application/vnd.margo.manifest.v1+json"
	// TypeBundle is the artifact type of a deployment bundle, and the media type of its archive.
	TypeBundle = "application/vnd.margo.bundle.v1+tar+gzip"
	// TypeDeployment is the media type of one ApplicationDeployment.
	TypeDeployment = "application/vnd.margo.deployment.v1+yaml"
	// TypeComponent is the artifact type of a Compose component.
	TypeComponent = "application/vnd.org.margo.component.compose+json"
	// TypeComposeArchive is the media type of a Compose Archive.
	TypeComposeArchive = "application/vnd.org.margo.component.compose.tar+gzip"
	// TypePackage is the artifact type of an application package.
	TypePackage = "application/vnd.margo.app.v1+json"
	// TypeDescription is the media type of the margo.yaml in an application package.
	TypeDescription = "application/vnd.margo.app.description.v1+yaml"
	// TypeCurrentState is the artifact type of what a device reports of itself.
	TypeCurrentState = "application/vnd.longshore.current-state.v1+json"
	// TypeCurrentBundle is the media type of the sigstore bundle in it: a DSSE envelope with the signed statement.
	TypeCurrentBundle = "application/vnd.dev.sigstore.bundle.v0.3+json"
)

// Annotations that we write and read, beside those of the image specification.
const (
	AnnotationDevice           = "dev.longshore.device"
	AnnotationGeneration       = "dev.longshore.generation" // = manifestVersion
	AnnotationExpires          = "dev.longshore.expires"    // RFC 3339
	AnnotationWindows          = "dev.longshore.windows"    // in which the device makes changes, as schedule.Windows.JSON writes them
	AnnotationPrevious         = "dev.longshore.previous"   // digest of the generation before
	AnnotationRepeats          = "dev.longshore.repeats"    // digest of the earlier generation whose content this one has again
	AnnotationCounter          = "dev.longshore.counter"    // of a current state
	AnnotationComponentType    = "org.margo.component.type"
	AnnotationComponentVersion = "org.margo.component.version"
	AnnotationResource         = "org.margo.app.resource"
)

// Limits on what is read.
const (
	MaxManifest = 1 << 20  // bytes of an artifact's manifest
	MaxArchive  = 16 << 20 // compressed bytes of a Compose Archive or a bundle
	MaxUnpacked = 48 << 20 // bytes of all files in an archive; they are held in memory
	MaxEntries  = 4096     // entries of an archive
	MaxDocument = 4 << 20  // bytes of one document
	MaxWindows  = 16 << 10 // bytes of a state's windows
)

// Limits on what a manifest has in the descriptor of its layer. Who reads the manifest reads that anyway, because both change together, and is
// spared a request. A manifest may have MaxManifest bytes, of which 64 KiB are 85 in base64; a Compose Archive may be known from another
// component or an earlier version, so that more than 16 KiB could cost more than a request.
const (
	maxInlineState   = 64 << 10 // bytes of a State Manifest: some 250 deployments
	maxInlineArchive = 16 << 10 // bytes of a Compose Archive

	maxInlineDeployments = 8 << 10 // bytes of all deployments of a state: of more, those that did not change would cost more than a request
)

// Blob is content with its name.
type Blob struct {
	Descriptor ocispec.Descriptor
	Data       []byte
}

// Artifact is one OCI image manifest and all of its blobs, the empty config included: ready to be pushed.
type Artifact struct {
	Descriptor ocispec.Descriptor // of Manifest, with its artifact type
	Manifest   []byte
	Blobs      []Blob // in the order of the manifest: config, then layers; each once
}

// Size is how many bytes it has in all: manifest and blobs.
func (a *Artifact) Size() int64 {
	size := int64(len(a.Manifest))
	for _, b := range a.Blobs {
		size += b.Descriptor.Size
	}
	return size
}
