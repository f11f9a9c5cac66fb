package leasesvc

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"

	"github.com/trivet-dev/trivet/services/leasesvc/internal/sessioncontroller"
)

// A version on the wire is one of a Keeper behind a checksum over itself, the life of that Keeper and the parent of the watch.
// So a version of another replica, of another life of this one or of another watch is told from a good one.
const versionLength = checksumLength + 16

func versionText(life uint64, parent string, v sessioncontroller.Version) string {
	if v == (sessioncontroller.Version{}) {
		return ""
	}
	number := binary.BigEndian.AppendUint64(nil, v.Revision)
	number = binary.BigEndian.AppendUint64(number, v.Sessions)
	return base64.RawURLEncoding.EncodeToString(append(versionChecksum(life, parent, number), number...))
}

// parseVersion returns the zero Version for no text, and errVersionTooOld for what versionText did not make of the same life and
// parent.
func parseVersion(life uint64, parent, text string) (sessioncontroller.Version, error) {
	if text == "" {
		return sessioncontroller.Version{}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) != versionLength {
		return sessioncontroller.Version{}, errVersionTooOld
	}
	number := raw[checksumLength:]
	if !bytes.Equal(raw[:checksumLength], versionChecksum(life, parent, number)) {
		return sessioncontroller.Version{}, errVersionTooOld
	}
	return sessioncontroller.Version{Revision: binary.BigEndian.Uint64(number), Sessions: binary.BigEndian.Uint64(number[8:])}, nil
}

func versionChecksum(life uint64, parent string, number []byte) []byte {
	return checksumOf("trivet.lease.v1.WatchLeases", string(binary.BigEndian.AppendUint64(nil, life)), parent, string(number))
}
