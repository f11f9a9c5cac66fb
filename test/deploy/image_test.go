package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/trivet-dev/trivet/test/lab/gobuild"
)

// The Go of the image is the one that go.mod asks for; two places name it, because a Dockerfile
// cannot read the other.
func TestImage_IsBuiltWithTheModulesGo(t *testing.T) {
	module, dockerfile := read(t, "go.mod"), read(t, "deploy/Dockerfile")
	asked := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(module)
	taken := regexp.MustCompile(`(?m)^ARG GO_VERSION=(\d+\.\d+)$`).FindStringSubmatch(dockerfile)
	if asked == nil || taken == nil || asked[1] != taken[1] {
		t.Errorf("go.mod asks for %q, the Dockerfile takes %q", asked, taken)
	}
}

// The image has the commands of cmd/ and the links of the servers at its root: what the manifests
// start must be one that builds. The list of the image is tested where it is.
func TestImage_HasWhatTheManifestsStart(t *testing.T) {
	for _, tree := range trees() {
		for name, spec := range pods(t, render(t, tree)) {
			for _, container := range append(spec.InitContainers, spec.Containers...) {
				command := started(container)
				if command == "" {
					continue
				}
				if _, err := os.Stat(gobuild.Command(t, command)); err != nil {
					t.Errorf("%s: pod %s starts /%s: %v", tree, name, command, err)
				}
			}
		}
	}
}

// started is the command of our image that a container starts; empty for other people's images.
func started(container corev1.Container) string {
	if container.Image != "trivet" && !strings.HasPrefix(container.Image, "trivet:") {
		return ""
	}
	return strings.TrimPrefix(container.Command[0], "/")
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
