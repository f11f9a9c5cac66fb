// Package docs_test compares what the documentation says with what the code has.
package docs_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	registryv1 "github.com/trivet-dev/trivet/proto/trivet/registry/v1alpha1"
)

// reasons.md is generated from the registry: go test ./docs -run Reasons -args -update
func TestReasons_AreAllDocumented(t *testing.T) {
	want := reasonReference()
	if *update {
		if err := os.WriteFile("reasons.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, document(t, "reasons.md")); diff != "" {
		t.Errorf("reasons.md is out of date; run go test ./docs -run Reasons -args -update (-registry +file):\n%s", diff)
	}
}

const reasonIntroduction = `# Reasons

This page is generated from [the registry of reasons](../proto/trivet/registry/v1alpha1/reasons.proto).

Every error of a Trivet RPC carries one ` + "`google.rpc.ErrorInfo`" + ` with domain ` + "`trivet.dev`" + ` and one of the reasons below. The
HTTP API returns the same as JSON. Programs switch on the reason; messages are for people and may change. Every change of
a plan has a reason, too; the second half of this page lists them.

"Retry" says whether the same call may succeed later. If the status carries ` + "`RetryInfo`" + `, wait that long; otherwise pause
with jitter. "Rejection" says whether a rejected item, in a response that is otherwise OK, may have the reason.
`

// reasonReference renders all enums of the registry, in the order of their files.
func reasonReference() string {
	var text strings.Builder
	text.WriteString(reasonIntroduction)
	for _, enum := range registry() {
		for _, section := range enum.Sections {
			text.WriteString("\n## " + section.GetTitle() + "\n")
			for _, paragraph := range []string{section.GetIntroduction(), enum.table(section.GetName()), section.GetNote()} {
				if paragraph != "" {
					text.WriteString("\n" + strings.TrimSpace(paragraph) + "\n")
				}
			}
		}
	}
	return text.String()
}

// reasonEnum is one enum of the registry with its reasons, in their order.
type reasonEnum struct {
	name string
	*registryv1.ReasonRegistry
	reasons []reason
}

// reason is a value of the registry. Its text is what is sent.
type reason struct {
	text string
	*registryv1.ReasonInfo
}

func registry() []reasonEnum {
	var found []reasonEnum
	for _, file := range []protoreflect.FileDescriptor{
		registryv1.File_trivet_registry_v1alpha1_reasons_proto,
		registryv1.File_trivet_registry_v1alpha1_change_reasons_proto,
		registryv1.File_trivet_registry_v1alpha1_conditions_proto,
		registryv1.File_trivet_registry_v1alpha1_codes_proto,
	} {
		for i := range file.Enums().Len() {
			found = append(found, reasonEnumOf(file.Enums().Get(i)))
		}
	}
	return found
}

func reasonEnumOf(descriptor protoreflect.EnumDescriptor) reasonEnum {
	enum := reasonEnum{
		name:           string(descriptor.Name()),
		ReasonRegistry: proto.GetExtension(descriptor.Options(), registryv1.E_Registry).(*registryv1.ReasonRegistry),
	}
	prefix := strings.TrimSuffix(string(descriptor.Values().ByNumber(0).Name()), "UNSPECIFIED")
	for i := range descriptor.Values().Len() {
		value := descriptor.Values().Get(i)
		if value.Number() == 0 {
			continue
		}
		info := proto.GetExtension(value.Options(), registryv1.E_Reason).(*registryv1.ReasonInfo)
		text := info.GetName()
		if text == "" {
			text = strings.TrimPrefix(string(value.Name()), prefix)
		}
		enum.reasons = append(enum.reasons, reason{text: text, ReasonInfo: info})
	}
	return enum
}

// reasonsOf returns the texts of one enum, in their order.
func reasonsOf(t *testing.T, name string) []string {
	t.Helper()
	all := registry()
	i := slices.IndexFunc(all, func(e reasonEnum) bool { return e.name == name })
	if i < 0 {
		t.Fatalf("the registry has no enum %s", name)
	}
	var texts []string
	for _, r := range all[i].reasons {
		texts = append(texts, r.text)
	}
	return texts
}

// table renders the reasons of a section. A column that is empty for all of them is omitted.
func (e reasonEnum) table(section string) string {
	columns := []struct {
		heading string
		cell    func(reason) string
	}{
		{e.GetNoun(), func(r reason) string { return "`" + r.text + "`" }},
		{"code", func(r reason) string { return strings.TrimPrefix(r.GetCode().String(), "OK") }},
		{"rejection", func(r reason) string { return map[bool]string{true: "yes"}[r.GetRejection()] }},
		{"severity", func(r reason) string { return r.GetSeverity() }},
		{"subject", func(r reason) string { return r.GetSubject() }},
		{"meaning", func(r reason) string { return r.GetMeaning() }},
		{"FAILED when", func(r reason) string { return r.GetBrokenWhen() }},
		{"retry", func(r reason) string { return retryOf(r.GetRetry()) }},
		{"effect", func(r reason) string { return r.GetEffect() }},
		{"action", func(r reason) string { return r.GetAction() }},
	}
	var listed []reason
	for _, r := range e.reasons {
		if r.GetSection() == section {
			listed = append(listed, r)
		}
	}
	lines := make([]string, len(listed)+2)
	for _, column := range columns {
		if !slices.ContainsFunc(listed, func(r reason) bool { return column.cell(r) != "" }) {
			continue
		}
		lines[0] += "| " + column.heading + " "
		lines[1] += "|---"
		for i, r := range listed {
			lines[i+2] += "| " + strings.ReplaceAll(column.cell(r), "|", "\\|") + " "
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "|\n")+"|", "|  |", "| – |")
}

func retryOf(retry registryv1.ReasonInfo_Retry) string {
	if retry == registryv1.ReasonInfo_RETRY_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(retry.String(), "RETRY_"))
}
