package api

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/services/bootstrapsvc/internal/allocation"
)

// A page token is a checksum followed by the position of the last finding of a page. The checksum
// covers the position and the list's arguments, so that the token of another list is rejected. The
// token grants no rights.

const checksumLength = 8

// position is the place of a finding in a list: by the time of its first observation, then by name.
type position struct {
	firstSeen time.Time
	name      string
}

func positionOf(f allocation.Finding) position {
	return position{firstSeen: f.FirstSeen, name: f.Name}
}

func comparePositions(a, b position) int {
	return cmp.Or(a.firstSeen.Compare(b.firstSeen), cmp.Compare(a.name, b.name))
}

func pageToken(list listArguments, last position) string {
	text := strconv.FormatInt(last.firstSeen.UnixNano(), 10) + "/" + last.name
	return base64.RawURLEncoding.EncodeToString(append(checksum(list, text), text...))
}

// parsePageToken returns the position after which the page begins, and whether the token is one of
// this list. The empty token gives the zero position.
func parsePageToken(list listArguments, token string) (position, bool) {
	if token == "" {
		return position{}, true
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) < checksumLength {
		return position{}, false
	}
	text := string(raw[checksumLength:])
	nanos, name, _ := strings.Cut(text, "/")
	nanoseconds, err := strconv.ParseInt(nanos, 10, 64)
	if err != nil || !bytes.Equal(raw[:checksumLength], checksum(list, text)) {
		return position{}, false
	}
	return position{firstSeen: time.Unix(0, nanoseconds), name: name}, true
}

// listArguments are the arguments that select the findings of a list.
type listArguments struct {
	code      int32
	showEnded bool
}

func checksum(list listArguments, text string) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "trivet.bootstrap.v1.ListFindings\x00%d\x00%t\x00%s", list.code, list.showEnded, text))
	return sum[:checksumLength]
}
