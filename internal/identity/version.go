package identity

import "runtime/debug"

// version is set by the linker: -ldflags "-X github.com/trivet-dev/trivet/internal/identity.version=v1.2.3".
// The linker can set nothing but a package variable; nothing else writes it.
var version string

// Version returns the version of this build: what the linker was told, else the module version that `go install` recorded,
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
