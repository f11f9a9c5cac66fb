// Package pagetoken encodes the position of a list page as a page token.
//
// A token is a checksum followed by the position of the last item of a page, in base64url. The
// checksum covers the RPC, the arguments of the list and the position, so that a token of another
// list or a forged token is refused. A token grants no access, and every replica accepts it.
package pagetoken

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
)

// ChecksumSize is the length of a [Checksum] in bytes.
const ChecksumSize = 8

// ErrInvalid says that a token was not made by [Encode] with the same arguments.
var ErrInvalid = errors.New("page_token is not from a list with the same arguments; list again without it")

// Encode returns the token of the page after position, which must not be empty. arguments are the
// full name of the RPC and everything that selects the items of the list.
func Encode(position string, arguments ...string) string {
	return base64.RawURLEncoding.EncodeToString(append(checksum(position, arguments), position...))
}

// Parse returns the position of a token that Encode made with the same arguments. Otherwise, and
// for the empty token, it returns ErrInvalid.
func Parse(token string, arguments ...string) (position string, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) <= ChecksumSize {
		return "", ErrInvalid
	}
	position = string(raw[ChecksumSize:])
	if !bytes.Equal(raw[:ChecksumSize], checksum(position, arguments)) {
		return "", ErrInvalid
	}
	return position, nil
}

func checksum(position string, arguments []string) []byte {
	return Checksum(append(arguments[:len(arguments):len(arguments)], position)...)
}

// Checksum returns ChecksumSize bytes that identify parts. It detects mistakes; it is not a
// signature.
func Checksum(parts ...string) []byte {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return sum[:ChecksumSize:ChecksumSize]
}
