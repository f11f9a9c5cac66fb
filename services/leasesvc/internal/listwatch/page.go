package listwatch

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
)

const (
	// ChecksumSize is the length of a Checksum in bytes.
	ChecksumSize    = 8
	defaultPageSize = 500
	maxPageSize     = 5000
)

// ErrPageToken means that a page token was not made by PageToken for the same arguments.
var ErrPageToken = errors.New("page_token is not from a list with the same arguments; list again without it")

// PageSize returns the number of items of a page: the requested number up to a limit, or a default
// for 0.
func PageSize(requested int32) int {
	if requested == 0 {
		return defaultPageSize
	}
	return min(int(requested), maxPageSize)
}

// PageToken returns the token of the page after the item with the name last. The token starts with
// a checksum of the name and of the other arguments of the list, so that ParsePageToken detects a
// token of another list. Every replica accepts it, and it grants no access.
func PageToken(arguments, last string) string {
	return base64.RawURLEncoding.EncodeToString(append(pageChecksum(arguments, last), last...))
}

// ParsePageToken returns the name of the last item of the previous page, or ErrPageToken.
func ParsePageToken(token, arguments string) (last string, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) <= ChecksumSize {
		return "", ErrPageToken
	}
	last = string(raw[ChecksumSize:])
	if !bytes.Equal(raw[:ChecksumSize], pageChecksum(arguments, last)) {
		return "", ErrPageToken
	}
	return last, nil
}

func pageChecksum(arguments, last string) []byte {
	return Checksum("trivet.lease.v1.ListLeases", arguments, last)
}

// Checksum returns ChecksumSize bytes that detect a token of another RPC, of other arguments, or of
// another process.
func Checksum(parts ...string) []byte {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return sum[:ChecksumSize]
}
