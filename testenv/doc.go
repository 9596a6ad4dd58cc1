// Package testenv prepares the real world for tests, the demo and the benchmarks: programs, containerd, registries, images
// and faults.
//
// Nothing here pretends. Programs are built once from the module proxy, at the versions that testenv/tools/go.mod pins;
// registries are the servers that others run; images are real software in OCI images made without Docker. Each thing comes
// in two forms: one for tests, which takes a [testing.TB], cleans up after it and shows logs when it failed
// ([Containerd], [Registry], [Program]), and one for programs, which takes a context and returns something to stop
// ([StartContainerd], [StartRegistry], [Prepare]).
//
// What a machine lacks (root, a program that does not build) skips the test that asks for it, and fails it when
// TESTENV_REQUIRE=1, so that a run that must be complete cannot pass by skipping.
package testenv
