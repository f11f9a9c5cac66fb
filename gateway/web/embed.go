// Package web holds the gateway's page: one HTML file, its style and a few small modules, as a browser takes them. There is
// no build step and nothing comes from elsewhere.
//
// The page shows what GET /v1/status:watch, /v1/nodes:watch, /v1/findings:watch and /v1/slices:watch stream. Beside them it asks now
// and then for the zones, the baseline, the apiservers and the repairs; while a Node is looked at for its chain of evidence, and while
// a Service is for its slices and what the next pass would write; and when it is asked for a plan for that, which it shows with the
// command that applies it. A page that nobody looks at lets the streams go, but for the status. Every value goes into the document as
// the text of a node or as an attribute, or onto a canvas, never as HTML; the server's Content-Security-Policy would refuse the rest.
package web

import (
	"embed"
	"io/fs"
)

// files is written by the compiler and only read.
//
//go:embed index.html assets
var files embed.FS

// Files holds index.html and, under assets/, what it loads.
func Files() fs.FS { return files }
