package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// A page token is a checksum and the last Service of the page before it. The checksum covers that
// Service and the list's parent: a token of another list, or a forged one, is refused. A token
// grants nothing, and every replica accepts it.

const checksumLength = 8

func pageToken(namespace string, last slicecontroller.Key) string {
	position := last.Namespace + "/" + last.Name
	token := append(checksum(namespace, position), position...)
	return base64.RawURLEncoding.EncodeToString(token)
}

// parsePageToken returns the Service after which a list continues, the zero Key for an empty token.
// It fails with errPageToken.
func parsePageToken(token, namespace string) (slicecontroller.Key, error) {
	if token == "" {
		return slicecontroller.Key{}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) < checksumLength {
		return slicecontroller.Key{}, errPageToken
	}
	position := string(raw[checksumLength:])
	serviceNamespace, name, ok := strings.Cut(position, "/")
	if !ok || !bytes.Equal(raw[:checksumLength], checksum(namespace, position)) {
		return slicecontroller.Key{}, errPageToken
	}
	return slicecontroller.Key{Namespace: serviceNamespace, Name: name}, nil
}

func checksum(namespace, position string) []byte {
	sum := sha256.Sum256([]byte("trivet.slice.v1.ListServiceSlices\x00" + namespace + "\x00" + position))
	return sum[:checksumLength]
}
