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
