// Package web holds the gateway's page: one HTML file, its styles and small JavaScript modules,
// without a build step.
//
// The page follows the watches of the status, Nodes, findings and Services. All windows of a
// browser share one connection for them, which a shared worker keeps; see hub.js. A page polls
// zones, the baseline, kube-apiservers and repairs, and what an open panel shows. A hidden page
// rests.
//
// Each value becomes the text of a node, an attribute, or pixels of a canvas, never HTML. The
// server's Content-Security-Policy refuses everything else.
package web

import (
	"embed"
	"io/fs"
)

//go:embed index.html assets
var files embed.FS

// Files returns index.html and, under assets/, the files that it loads.
func Files() fs.FS { return files }
