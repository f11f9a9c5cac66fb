package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// rootsModule is the module that publicRoots reads. Its version in go.mod is the version of the
// bundle.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// publicRoots returns the public authorities of Mozilla's program as PEM, each with its name.
//
// They come from a module, not from this machine, so that equal sources make equal images. An
// authority whose trust Mozilla limits by date is left out: a PEM file cannot hold the limit.
func publicRoots() ([]byte, error) {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		certificate, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			return nil, fmt.Errorf("parse an authority of %s: %w", rootsModule, err)
		}
		fmt.Fprintf(&out, "# %s\n", certificate.Subject)
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}
