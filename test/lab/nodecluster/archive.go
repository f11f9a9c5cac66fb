package nodecluster

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
)

// WriteImage writes an image with static binaries in its root directory, and nothing else, as an
// archive that `docker save` would write. The first binary is its default command. A binary that is
// a link to another one is a link in the image, too.
func WriteImage(out, name string, binaries ...string) error {
	layer := out + ".layer"
	defer os.Remove(layer)
	digest, err := writeLayer(layer, binaries)
	if err != nil {
		return fmt.Errorf("write layer of image %s: %w", name, err)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": "1970-01-01T00:00:00Z",
		"config": map[string]any{"Entrypoint": []string{"/" + filepath.Base(binaries[0])}, "Env": []string{"PATH=/"}, "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
	})
	if err != nil {
		return fmt.Errorf("encode image %s: %w", name, err)
	}
	sum := sha256.Sum256(config)
	configFile := hex.EncodeToString(sum[:]) + ".json"
	manifest, err := json.Marshal([]map[string]any{{"Config": configFile, "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return fmt.Errorf("encode manifest of image %s: %w", name, err)
	}
	partial := out + ".partial"
	defer os.Remove(partial)
	err = writeTar(partial, func(archive *tar.Writer) error {
		for _, file := range []struct {
			name    string
			content []byte
		}{{"manifest.json", manifest}, {configFile, config}} {
			if err := archive.WriteHeader(&tar.Header{Name: file.name, Mode: 0o644, Size: int64(len(file.content))}); err != nil {
				return err
			}
			if _, err := archive.Write(file.content); err != nil {
				return err
			}
		}
		return addFile(archive, "layer.tar", layer, 0o644)
	})
	if err != nil {
		return fmt.Errorf("write image %s: %w", name, err)
	}
	return os.Rename(partial, out)
}

// writeLayer returns the digest of what it writes.
func writeLayer(file string, binaries []string) (digest string, err error) {
	err = writeTar(file, func(archive *tar.Writer) error {
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil {
			return err
		}
		for _, binary := range binaries {
			target, err := os.Readlink(binary)
			if err == nil && slices.ContainsFunc(binaries, func(other string) bool { return filepath.Base(other) == target }) {
				if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: path.Base(binary), Linkname: target, Mode: 0o777}); err != nil {
					return err
				}
				continue
			}
			if err := addFile(archive, path.Base(binary), binary, 0o755); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	content, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer content.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, content)
	return hex.EncodeToString(hash.Sum(nil)), err
}

func writeTar(file string, fill func(*tar.Writer) error) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	archive := tar.NewWriter(out)
	if err := fill(archive); err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return out.Close()
}

func addFile(archive *tar.Writer, name, file string, mode int64) error {
	content, err := os.Open(file)
	if err != nil {
		return err
	}
	defer content.Close()
	info, err := content.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(archive, content)
	return err
}
