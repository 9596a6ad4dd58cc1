package signing

// Format is where and how a signature is stored.
type Format string

// Formats of signatures.
const (
	// FormatBundle is a sigstore bundle in a referrer: cosign 3's own format, read by 2.6 too.
	FormatBundle Format = "bundle"
	// FormatLegacy is a simple signing payload under the tag "sha256-<hex>.sig". Writing it is a read, an append and a
	// write of one tag, so concurrent signers may overwrite each other: a writer reads the tag again and repeats.
	FormatLegacy Format = "legacy"
	// FormatBoth is one of each. cosign 2.6 then requires --trusted-root, also for the legacy one.
	FormatBoth Format = "both"
)
