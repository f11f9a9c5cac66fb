package openapi

import (
	"encoding/json"
	"testing"
)

// The generator takes title and version from the first .proto file; see options.yaml.
func TestDocument_HasTitleAndVersion(t *testing.T) {
	var got struct {
		Info  struct{ Title, Version string }
		Paths map[string]any
	}
	if err := json.Unmarshal([]byte(Document()), &got); err != nil {
		t.Fatal(err)
	}
	if got.Info.Title != "Trivet" || got.Info.Version != "v1" || len(got.Paths) == 0 {
		t.Errorf("title %q, version %q, %d paths; want Trivet, v1 and all paths", got.Info.Title, got.Info.Version, len(got.Paths))
	}
}
