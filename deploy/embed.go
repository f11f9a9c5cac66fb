// Package deploy has the manifests of this folder, so that programs can apply parts of them.
package deploy

import (
	"embed"
	"io/fs"
)

//go:embed base components static-pods
var files embed.FS

// Files returns the folders base, components and static-pods.
func Files() fs.FS { return files }
