package trust_test

import (
	"fmt"

	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/trust"
)

func ExampleParse() {
	document := []byte(`
rules:
  - scope: harbor.acme.example/plant/**
    keys:
      - {name: release, file: release.pub}
  - scope: "**"
    reject: true
`)
	_, public, err := sign.GenerateKey(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	policy, err := trust.Parse("/etc/longshore/trust.yaml", document, func(path string) ([]byte, error) {
		fmt.Println("reads", path)
		return public, nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	rule, _ := policy.Match(trust.KindState, "harbor.acme.example/plant/state")
	fmt.Println(rule.Scope, rule.Signers[0].Name)
	// Output:
	// reads /etc/longshore/release.pub
	// harbor.acme.example/plant/** release
}
