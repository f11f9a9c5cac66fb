package bootstrapsvc

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

// A page token names the last finding of the page before it, after a checksum over that and over the list's arguments, so that a
// token from another list and one that was tampered with are told from a good one. It grants nothing: it only says where to go on.

const checksumLength = 8

// position is a finding's place in a list: by first sight and name.
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

// parsePageToken returns the position after which to go on, the zero position for the first page, and whether the token is one of
// this list.
func parsePageToken(list listArguments, token string) (position, bool) {
	if token == "" {
		return position{}, true
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) < checksumLength {
		return position{}, false
	}
	text := string(raw[checksumLength:])
	sight, name, _ := strings.Cut(text, "/")
	nanoseconds, err := strconv.ParseInt(sight, 10, 64)
	if err != nil || !bytes.Equal(raw[:checksumLength], checksum(list, text)) {
		return position{}, false
	}
	return position{firstSeen: time.Unix(0, nanoseconds), name: name}, true
}

// listArguments are those on which it depends what a list holds.
type listArguments struct {
	code      int32
	showEnded bool
}

func checksum(list listArguments, text string) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "trivet.bootstrap.v1.ListFindings\x00%d\x00%t\x00%s", list.code, list.showEnded, text))
	return sum[:checksumLength]
}
