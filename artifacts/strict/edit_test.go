package strict_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// What people wrote stays: comments, order, empty lines between sections, the style of lists.
func TestEditYAML(t *testing.T) {
	before := `# The policy.
version: 7   # one more with each change

keys:
  # of the build machine
  - name: release
    pem: |
      -----BEGIN
      abc
  - {name: old, file: old.pub}   # goes

# Who signs.
rules:
  - scope: a/b/**
    signers: [release, old]
    threshold: 1
  - scope: "**"
    reject: true
empty:
`
	want := `# The policy.
version: 8 # one more with each change

keys:
  # of the build machine
  - name: release
    pem: |
      -----BEGIN
      abc
  - name: new
    pem: |
      x
      y

# Who signs.
rules:
  - scope: a/b/**
    signers: [release, new, "true"]
    threshold: 1
  - scope: "**"
    reject: true
    threshold: 2
empty:
  - one
added:
  - two
`
	tree, err := strict.EditYAML("x.yaml", []byte(before))
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(tree.Set(8, "version"))
	must(tree.AppendFields([]strict.Field{{"name", "new"}, {"pem", "x\ny\n"}}, "keys"))
	tree.Remove("keys", 1)
	tree.Remove("keys", 7)
	tree.Remove("nothing", "here")
	tree.Remove("rules", 0, "signers", 1)
	must(tree.Append("new", "rules", 0, "signers"))
	must(tree.Append("true", "rules", 0, "signers"))
	must(tree.Set(2, "rules", 1, "threshold"))
	must(tree.Append("one", "empty"))
	must(tree.Append("two", "added"))
	got, err := tree.Bytes()
	must(err)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	if err := tree.Append("x", "version"); err == nil {
		t.Error("a number is no list")
	}
	if err := tree.Set(1, "nothing", "here"); err == nil {
		t.Error("there is no such mapping")
	}
	if _, err := strict.EditYAML("x.yaml", []byte("a: &x 1\n")); err == nil {
		t.Error("an anchor is taken")
	}
}
