package leasesvc

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// A page token names the last Lease of the page before, behind a checksum over that and the list's other arguments. So a
// token of another list, or one that somebody wrote himself, is told from a good one, and every replica understands it. It
// grants nothing: it only says where to go on.

const (
	checksumLength  = 8
	defaultPageSize = 500
	maxPageSize     = 5000
)

func pageSize(asked int32) int {
	if asked == 0 {
		return defaultPageSize
	}
	return min(int(asked), maxPageSize)
}

func pageToken(arguments, last string) string {
	return base64.RawURLEncoding.EncodeToString(append(checksum(arguments, last), last...))
}

// parsePageToken returns the name of the Lease after which to go on, and errPageToken for what pageToken did not make of the
// same arguments.
func parsePageToken(token, arguments string) (last string, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) <= checksumLength {
		return "", errPageToken
	}
	last = string(raw[checksumLength:])
	if !bytes.Equal(raw[:checksumLength], checksum(arguments, last)) {
		return "", errPageToken
	}
	return last, nil
}

func checksum(arguments, last string) []byte {
	return checksumOf("trivet.lease.v1.ListLeases", arguments, last)
}

func checksumOf(parts ...string) []byte {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return sum[:checksumLength]
}
