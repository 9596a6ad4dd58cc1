// Package conformance holds a compose command on Longshore and what must hold for it: the public conformance tests of the
// Compose Specification, and cases of our own for the same promises.
//
// testdata/compose maps up, down and ps onto the real chain: component push, a signed state push, an agent on containerd.
// The cases of our own always run. The public suite is no Go module that can be required, so it runs, unmodified, where
// LONGSHORE_CONFORMANCE_SUITE names a clone of github.com/compose-spec/conformance-tests. See TestCompose.
package conformance
