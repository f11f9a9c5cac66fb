package printer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"github.com/trivet-dev/trivet/internal/prototime"
)

// jsonPathPrefix begins the form with a template, as in kubectl.
const jsonPathPrefix = "jsonpath="

// DocumentForms returns the forms of [WriteDocument]; the last one is followed by a template.
func DocumentForms() []string { return []string{"json", "yaml", jsonPathPrefix} }

// IsDocument reports whether a form is one of [DocumentForms].
func IsDocument(form string) bool {
	return slices.Contains([]string{"json", "yaml"}, form) || IsTemplate(form)
}

// IsTemplate reports whether a form has a template.
func IsTemplate(form string) bool { return strings.HasPrefix(form, jsonPathPrefix) }

// CheckDocument returns an error for a form with a wrong template.
func CheckDocument(form string) error {
	template, isPath := strings.CutPrefix(form, jsonPathPrefix)
	if !isPath {
		return nil
	}
	if !strings.Contains(template, "{") {
		return fmt.Errorf("--output=%s: the template has no {expression}, such as {.nodes[*].name}", form)
	}
	if _, err := parsePath(template); err != nil {
		return fmt.Errorf("--output=%s: %w", form, err)
	}
	return nil
}

func parsePath(template string) (*jsonpath.JSONPath, error) {
	path := jsonpath.New("output").AllowMissingKeys(true)
	return path, path.Parse(template)
}

// WriteDocument writes a value in a form for programs, and reports whether the form is one. The
// value is a message of the API, whose JSON is that of the gateway's HTTP server, or any value of
// encoding/json.
func WriteDocument(w io.Writer, form string, value any) (bool, error) {
	if !IsDocument(form) {
		return false, nil
	}
	text, err := document(form, value)
	if err == nil {
		_, err = w.Write(text)
	}
	return true, err
}

// WriteEvent writes one of many values: a line of JSON, a YAML document after a separator, or the
// text of the template in a line. The form must be one of [DocumentForms].
func WriteEvent(w io.Writer, form string, value any) error {
	var text []byte
	var err error
	switch form {
	case "json":
		text, err = JSONLine(value)
		text = append(text, '\n')
	case "yaml":
		text, err = document(form, value)
		text = append([]byte("---\n"), text...)
	default:
		text, err = document(form, value)
		text = append(bytes.TrimSuffix(text, []byte("\n")), '\n')
	}
	if err == nil {
		_, err = w.Write(text)
	}
	return err
}

func document(form string, value any) ([]byte, error) {
	line, err := jsonLine(value)
	if err != nil {
		return nil, err
	}
	switch form {
	case "json":
		var indented bytes.Buffer
		if err := json.Indent(&indented, escapeControls(line), "", "  "); err != nil {
			return nil, fmt.Errorf("indent JSON: %w", err)
		}
		return append(indented.Bytes(), '\n'), nil
	case "yaml":
		// The parser of YAML takes no control character, and no escape of two units.
		text, err := yaml.JSONToYAML(escape(line, func(r rune) bool { return r <= 0xffff && isControl(r) }))
		return bytes.Map(visible, text), err
	default:
		return JSONPath(strings.TrimPrefix(form, jsonPathPrefix), line)
	}
}

// JSONPath returns the text of a template over JSON. A missing field is empty. Control characters
// of the data are replaced, those of the template are not.
func JSONPath(template string, encoded []byte) ([]byte, error) {
	path, err := parsePath(template) // an execution changes the parsed template
	if err != nil {
		return nil, err
	}
	var value any
	if err := utiljson.Unmarshal(encoded, &value); err != nil { // keeps integers
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	var text bytes.Buffer
	if err := path.Execute(&text, sanitizeValue(value)); err != nil {
		return nil, fmt.Errorf("jsonpath %s: %w", template, err)
	}
	return text.Bytes(), nil
}

// visible replaces what a terminal obeys, except for the line breaks of YAML.
func visible(r rune) rune {
	if r != '\n' && isControl(r) {
		return unicode.ReplacementChar
	}
	return r
}

func sanitizeValue(value any) any {
	switch value := value.(type) {
	case string:
		return Sanitize(value)
	case []any:
		for i := range value {
			value[i] = sanitizeValue(value[i])
		}
	case map[string]any:
		for key := range value {
			value[key] = sanitizeValue(value[key])
		}
	}
	return value
}

// JSONLine returns a value as JSON in one line without a line break. A message of the API has all
// fields, as the gateway's HTTP server gives it. The same message gives the same bytes: protojson
// varies its spaces on purpose, compacting removes them.
func JSONLine(value any) ([]byte, error) {
	line, err := jsonLine(value)
	return escapeControls(line), err
}

// jsonLine is JSONLine without the escapes for terminals.
func jsonLine(value any) ([]byte, error) {
	message, isMessage := value.(proto.Message)
	if !isMessage {
		var line bytes.Buffer
		encoder := json.NewEncoder(&line)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(value); err != nil {
			return nil, fmt.Errorf("write JSON: %w", err)
		}
		return bytes.TrimSuffix(line.Bytes(), []byte("\n")), nil
	}
	encoded, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(message)
	if err != nil { // a time of another process may be out of the range of JSON
		encoded, err = protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(prototime.Limited(message))
	}
	if err != nil {
		return nil, fmt.Errorf("write %s as JSON: %w", message.ProtoReflect().Descriptor().Name(), err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, encoded); err != nil {
		return nil, fmt.Errorf("compact JSON: %w", err)
	}
	return compact.Bytes(), nil
}

// escapeControls escapes the characters of JSON that a terminal obeys and that encoders leave as
// they are: DEL, those of ISO 8859-1 from 0x80, and formatting characters of Unicode. Outside of
// strings JSON has none of them, and a reader gets the same text.
func escapeControls(line []byte) []byte { return escape(line, isControl) }

func escape(line []byte, these func(rune) bool) []byte {
	if !bytes.ContainsFunc(line, these) {
		return line
	}
	escaped := make([]byte, 0, len(line)+64)
	for _, r := range string(line) {
		if !these(r) {
			escaped = utf8.AppendRune(escaped, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			escaped = fmt.Appendf(escaped, "\\u%04x", unit)
		}
	}
	return escaped
}
