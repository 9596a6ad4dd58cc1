package keyless_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless/keylesstest"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// hugeKey is a log entry whose signature has to be checked with an RSA key of so many bytes: anyone can make one.
func hugeKey(t *testing.T, size int) []byte {
	t.Helper()
	modulus := make([]byte, size)
	_, _ = rand.Read(modulus)
	modulus[0] |= 0x80
	modulus[size-1] |= 1
	der, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: new(big.Int).SetBytes(modulus), E: 1<<31 - 1})
	if err != nil {
		t.Fatal(err)
	}
	modulus[0] &= 0x7f // a signature of the right length
	body, err := json.Marshal(map[string]any{"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": map[string]any{
		"data": map[string]any{"hash": map[string]any{"algorithm": "sha256", "value": digest.FromString("x").Encoded()}},
		"signature": map[string]any{
			"content": modulus, "publicKey": map[string]any{"content": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// deepStamp is a timestamp with so many levels in it, which are read before anything is checked.
func deepStamp(t *testing.T, levels int) []byte {
	t.Helper()
	token, err := asn1.Marshal(asn1.RawValue{Class: asn1.ClassUniversal, Tag: asn1.TagSequence, IsCompound: true, Bytes: append(
		append(bytes.Repeat([]byte{0x30, 0x80}, levels), 0x05, 0x00), bytes.Repeat([]byte{0, 0}, levels)...,
	)})
	if err != nil {
		t.Fatal(err)
	}
	stamp, err := asn1.Marshal(struct {
		Status struct{ Status int }
		Token  asn1.RawValue
	}{Token: asn1.RawValue{FullBytes: token}})
	if err != nil {
		t.Fatal(err)
	}
	return stamp
}

// What proves a signature is read before anyone is known to have made it. Whoever can write to a registry could have each look at it take hours.
func TestProofsThatAreSlowToCheck(t *testing.T) {
	instance := keylesstest.New(t)
	identity := newIdentity(t, parseRoot(t, instance.Root(t)))
	for name, spoil := range map[string]func(material map[string]any){
		"a large key in a log entry": func(material map[string]any) {
			entry := material["tlogEntries"].([]any)[0].(map[string]any)
			entry["canonicalizedBody"], entry["kindVersion"] = hugeKey(t, 16<<10), map[string]any{"kind": "hashedrekord", "version": "0.0.1"}
		},
		"a deep timestamp": func(material map[string]any) {
			material["timestampVerificationData"] = map[string]any{"rfc3161Timestamps": []any{map[string]any{"signedTimestamp": deepStamp(t, 10_000)}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := signingtest.NewMemory()
			target := m.Artifact(t, "hello")
			var bundle map[string]any
			if err := json.Unmarshal(instance.Bundle(t, issuer, subject, statement(target.Digest), keylesstest.Flaws{}), &bundle); err != nil {
				t.Fatal(err)
			}
			spoil(bundle["verificationMaterial"].(map[string]any))
			data, err := json.Marshal(bundle)
			if err != nil {
				t.Fatal(err)
			}
			m.Attach(t, target, signing.MediaTypeBundle, signing.MediaTypeBundle, data)
			_, err = signing.Verify(t.Context(), m, target, []signing.Verifier{identity})
			if !errors.Is(err, fault.ErrBadSignature) || !strings.Contains(fmt.Sprint(err), "at most 32768 can be") {
				t.Errorf("Verify = %v", err)
			}
		})
	}
}
