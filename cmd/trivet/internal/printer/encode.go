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

// JSONLine returns a message as JSON in one line without a line break, with all fields, as the
// gateway's HTTP server gives it. The same message gives the same bytes: protojson varies its
// spaces on purpose, compacting removes them.
func JSONLine(message proto.Message) ([]byte, error) {
	encoded, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("write %s as JSON: %w", message.ProtoReflect().Descriptor().Name(), err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, encoded); err != nil {
		return nil, fmt.Errorf("compact JSON: %w", err)
	}
	return compact.Bytes(), nil
}

// JSON returns the fields of [JSONLine] indented, with a line break at the end.
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

// WriteJSON writes the result of [JSON].
func WriteJSON(w io.Writer, message proto.Message) error {
	document, err := JSON(message)
	if err != nil {
		return err
	}
	_, err = w.Write(document)
	return err
}

// YAML returns the fields of [JSONLine] as a YAML document without separators.
func YAML(message proto.Message) ([]byte, error) {
	line, err := JSONLine(message)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(line)
}

// WriteYAML writes the result of [YAML].
func WriteYAML(w io.Writer, message proto.Message) error {
	document, err := YAML(message)
	if err != nil {
		return err
	}
	_, err = w.Write(document)
	return err
}

// WriteMessage writes a message as "json" or "yaml", and reports whether the format is one of them.
func WriteMessage(w io.Writer, format string, message proto.Message) (bool, error) {
	switch format {
	case "json":
		return true, WriteJSON(w, message)
	case "yaml":
		return true, WriteYAML(w, message)
	default:
		return false, nil
	}
}
