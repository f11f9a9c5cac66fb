package version

import (
	"fmt"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// Skew is how two versions relate.
type Skew string

// The skews. Released versions are supported together if their minor versions differ by one at
// most.
const (
	None        Skew = "none"
	Supported   Skew = "supported"
	Unsupported Skew = "unsupported"
	// NotReleased means that the versions differ and at least one is a build of a commit, so that
	// nothing says which is newer.
	NotReleased Skew = "not-released"
	// Unknown means that a program did not tell its version.
	Unknown Skew = "unknown"
)

// maxMinorSkew is the largest supported difference of minor versions.
const maxMinorSkew = 1

// SkewOf returns how two versions relate.
func SkewOf(a, b string) Skew {
	if a == "" || b == "" {
		return Unknown
	}
	if a == b {
		return None
	}
	versionA, errA := utilversion.ParseSemantic(a)
	versionB, errB := utilversion.ParseSemantic(b)
	switch {
	case errA != nil || errB != nil:
		return NotReleased
	case versionA.Major() != versionB.Major() || max(versionA.Minor(), versionB.Minor())-min(versionA.Minor(), versionB.Minor()) > maxMinorSkew:
		return Unsupported
	default:
		return Supported
	}
}

// worstOf returns the largest skew of versions, and the pair that has it.
func worstOf(versions []string) (worst Skew, between string) {
	rank := map[Skew]int{None: 0, Unknown: 1, NotReleased: 2, Supported: 3, Unsupported: 4}
	worst = None
	for i, a := range versions {
		for _, b := range versions[i+1:] {
			if skew := SkewOf(a, b); rank[skew] > rank[worst] {
				worst, between = skew, fmt.Sprintf("%s and %s", a, b)
			}
		}
	}
	return worst, between
}
