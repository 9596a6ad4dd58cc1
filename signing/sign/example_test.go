package sign_test

import (
	"fmt"

	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
)

func ExampleGenerateKey() {
	private, public, err := sign.GenerateKey([]byte("correct horse"))
	if err != nil {
		fmt.Println(err)
		return
	}
	signer, err := sign.NewSigner(private, []byte("correct horse"), sign.Options{Name: "release"})
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
