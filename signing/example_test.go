package signing_test

import (
	"fmt"

	"github.com/longshore-dev/longshore/signing"
)

func ExampleGenerateKey() {
	private, public, err := signing.GenerateKey([]byte("correct horse"))
	if err != nil {
		fmt.Println(err)
		return
	}
	signer, err := signing.NewSigner(private, []byte("correct horse"), signing.SignOptions{Name: "release"})
	if err != nil {
		fmt.Println(err)
		return
	}
	key, err := signing.ParsePublicKey("release", public)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(key.Name, key.Algorithm, key.Fingerprint == signer.Key().Fingerprint)
	// Output: release ECDSA P-256 true
}

func ExampleParsePolicy() {
	document := []byte(`
rules:
  - scope: harbor.acme.example/plant/**
    keys:
      - {name: release, file: release.pub}
  - scope: "**"
    reject: true
`)
	_, public, err := signing.GenerateKey(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	policy, err := signing.ParsePolicy("/etc/longshore/trust.yaml", document, func(path string) ([]byte, error) {
		fmt.Println("reads", path)
		return public, nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	rule, _ := policy.Match(signing.KindState, "harbor.acme.example/plant/state")
	fmt.Println(rule.Scope, rule.Keys[0].Name)
	// Output:
	// reads /etc/longshore/release.pub
	// harbor.acme.example/plant/** release
}
