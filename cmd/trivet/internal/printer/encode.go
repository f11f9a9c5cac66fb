// Package form writes the API's messages as JSON and YAML: field by field as the gateway's HTTP server gives them, empty ones
// included, so that a script finds every field it asks for. The same message gives the same bytes.
package printer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// Line gives JSON in one line, without a line break. protojson varies its spaces on purpose; compacting takes them out again.
func JSONLine(message proto.Message) ([]byte, error) {
	loose, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("write %s as JSON: %w", message.ProtoReflect().Descriptor().Name(), err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, loose); err != nil {
		return nil, fmt.Errorf("compact JSON: %w", err)
	}
	return compact.Bytes(), nil
}

// JSON gives indented JSON that ends with a line break.
func JSON(message proto.Message) ([]byte, error) {
	line, err := JSONLine(message)
	if err != nil {
		return nil, err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, line, "", "  "); err != nil {
		return nil, fmt.Errorf("indent JSON: %w", err)
	}
	return append(indented.Bytes(), '\n'), nil
}

// WriteJSON writes what JSON gives.
func WriteJSON(to io.Writer, message proto.Message) error {
	document, err := JSON(message)
	if err != nil {
		return err
	}
	_, err = to.Write(document)
	return err
}

// YAML gives a document without separators.
func YAML(message proto.Message) ([]byte, error) {
	line, err := JSONLine(message)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(line)
}
