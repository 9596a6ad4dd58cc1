// Package audit looks at what is in a registry from outside: what an artifact is and holds, who says to have signed it,
// and, down from a device's state to its last image, what a device would find when it checks.
//
// [Inspect] reads and believes: it checks digests and documents, and no signature. [Chain] asks a [Judge] about every
// artifact on the way and tells what was checked, by which key, and what was not. Neither changes anything, and neither
// opens a connection of its own: bytes come through signing.Source.
package audit
