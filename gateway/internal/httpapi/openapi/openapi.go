// Package openapi holds the OpenAPI document of the HTTP API, which `make gen` writes from proto/.
package openapi

import _ "embed"

//go:embed openapi.swagger.json
var document string

// Document returns the document, OpenAPI 2.0 in JSON.
func Document() string { return document }
