package slicesvc

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/trivet-dev/trivet/services/slicesvc/internal/slicecontroller"
)

// A page token names the last Service of the page before it, after a checksum
// over that and over the list's arguments, so that a token from another list and
// one that was tampered with are told from a good one. It grants nothing: it only
// says where to go on, and every replica understands it.

const checksumLength = 8

func pageToken(namespace string, last slicecontroller.Key) string {
	position := last.Namespace + "/" + last.Name
	token := append(checksum(namespace, position), position...)
	return base64.RawURLEncoding.EncodeToString(token)
}

// parsePageToken returns the Service after which to go on: the zero Key for the
// empty token. Its error is errPageToken.
func parsePageToken(token, namespace string) (slicecontroller.Key, error) {
	if token == "" {
		return slicecontroller.Key{}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) < checksumLength {
		return slicecontroller.Key{}, errPageToken
	}
	position := string(raw[checksumLength:])
	inNamespace, name, ok := strings.Cut(position, "/")
	if !ok || !bytes.Equal(raw[:checksumLength], checksum(namespace, position)) {
		return slicecontroller.Key{}, errPageToken
	}
	return slicecontroller.Key{Namespace: inNamespace, Name: name}, nil
}

func checksum(namespace, position string) []byte {
	sum := sha256.Sum256([]byte("trivet.slice.v1.ListServiceSlices\x00" + namespace + "\x00" + position))
	return sum[:checksumLength]
}
