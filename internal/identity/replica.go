package identity

import (
	"crypto/rand"
	"os"
	"runtime/debug"
	"strings"
)

const (
	suffixAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	suffixLength   = 5
	// A DNS label has at most 63 characters, and the last label of an id also carries "-" and the
	// suffix.
	maxStem = 63 - 1 - suffixLength
)

// NewReplicaID returns "<hostname>-<5 random characters of a-z0-9>", a valid DNS label that is new
// at every call. Invalid characters of the hostname become dashes. Without a hostname the id starts
// with "replica".
func NewReplicaID() string {
	hostname, err := os.Hostname()
	if err != nil {
		// The suffix makes the id unique.
		hostname = ""
	}
	return replicaID(hostname, randomSuffix())
}

func replicaID(hostname, suffix string) string {
	stem := strings.Map(labelRune, strings.ToLower(hostname))
	if len(stem) > maxStem {
		stem = stem[:maxStem]
	}
	stem = strings.Trim(stem, "-")
	if stem == "" {
		stem = "replica"
	}
	return stem + "-" + suffix
}

// labelRune replaces characters that a DNS label may not contain, including dots, by dashes.
func labelRune(r rune) rune {
	if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
		return r
	}
	return '-'
}

// randomSuffix has a slight bias towards the first letters, because 256 is not a multiple of 36.
func randomSuffix() string {
	raw := make([]byte, suffixLength)
	// crypto/rand.Read never fails.
	rand.Read(raw)
	for i, b := range raw {
		raw[i] = suffixAlphabet[int(b)%len(suffixAlphabet)]
	}
	return string(raw)
}

// version is set by the linker: -ldflags "-X
// github.com/trivet-dev/trivet/internal/identity.version=v1.2.3". The linker can set only a package
// variable. No code writes it.
var version string

// Version returns the version of this build: the linker's, else the module version of `go install`,
// else "devel".
func Version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(version, info)
}

func versionOf(linked string, info *debug.BuildInfo) string {
	if linked != "" {
		return linked
	}
	if info == nil || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "devel"
	}
	return info.Main.Version
}
