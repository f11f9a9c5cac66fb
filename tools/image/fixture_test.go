package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

const dependency = "dep\texample.com/linked\tv1.2.3\th1:c29tZSBzdW0=\n"

// tinyBinary returns an ELF binary of a few hundred bytes, with Go's build information. It has the
// segments that a linker gives to a static binary, and a dynamic loader if asked for.
func tinyBinary(machine elf.Machine, loader bool, content string) []byte {
	var information bytes.Buffer
	information.WriteString("\xff Go buildinf:\x08\x02")
	information.Write(make([]byte, 16))
	frame := strings.Repeat("-", 16)
	module := frame + "path\texample.com/main\nmod\texample.com/main\t(devel)\t\n" + dependency + frame
	for _, text := range []string{"go1.26.8", module} {
		information.Write(binary.AppendUvarint(nil, uint64(len(text))))
		information.WriteString(text)
	}
	information.WriteString(content)
	segment := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Off: 0x100, Vaddr: 0x10000,
		Filesz: uint64(information.Len()), Memsz: uint64(information.Len())}
	segments := []elf.Prog64{segment}
	if loader {
		segments = append(segments, elf.Prog64{Type: uint32(elf.PT_INTERP), Off: 0x100})
	}
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: uint16(len(segments)),
	}
	var out bytes.Buffer
	for _, part := range []any{header, segments} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			panic(err)
		}
	}
	out.Write(make([]byte, 0x100-out.Len()))
	out.Write(information.Bytes())
	return out.Bytes()
}

// writeFile writes a file below dir, with a time of its own so that no test depends on the clock.
func writeFile(t *testing.T, dir, name string, mode os.FileMode, content []byte, changed time.Time) string {
	t.Helper()
	target := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(target, content, mode), os.Chmod(target, mode), os.Chtimes(target, changed, changed)); err != nil {
		t.Fatal(err)
	}
	return target
}

// newBuild returns a builder whose go command is a shell script: it notes its call in the file
// calls and copies tiny binaries of GOARCH. The second result is the directory of script and calls.
func newBuild(t *testing.T, r release) (*builder, string) {
	t.Helper()
	dir := t.TempDir()
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		for _, name := range []string{"trivet", "trivet-agent", "trivet-server"} {
			writeFile(t, dir, filepath.Join(arch, name), 0o700, tinyBinary(machine, false, name), time.Now())
		}
	}
	script := "#!/bin/sh\ncd " + dir + "\n" +
		`echo "$GOOS/$GOARCH cgo=$CGO_ENABLED flags=$GOFLAGS $*" >> calls` + "\n" +
		`for a; do [ "$previous" = -o ] && out=$a; previous=$a; done` + "\n" +
		`cp "$GOARCH"/* "$out"` + "\n"
	b := &builder{
		compiler:  compiler{goTool: writeFile(t, dir, "go", 0o700, []byte(script), time.Now()), root: dir, version: r.version},
		release:   r,
		platforms: []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}},
		out:       filepath.Join(t.TempDir(), "dist"),
		limit:     maxCompressed,
		progress:  io.Discard,
	}
	return b, dir
}

func testRelease() release {
	return release{version: "v1.2.3", revision: "0123456789abcdef", created: time.Unix(1_700_000_000, 0)}
}

// tarEntry is an entry of a tar stream.
type tarEntry struct {
	name     string
	mode     int64
	uid, gid int
	time     int64
	link     string // target of a symbolic link
	content  string
}

func tarEntries(t *testing.T, stream io.Reader) []tarEntry {
	t.Helper()
	var entries []tarEntry
	for archive := tar.NewReader(stream); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, tarEntry{header.Name, header.Mode, header.Uid, header.Gid, header.ModTime.Unix(), header.Linkname, string(content)})
	}
}

// imageEntries returns the entries of all layers of an image, in their order.
func imageEntries(t *testing.T, image v1.Image) []tarEntry {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	var entries []tarEntry
	for _, layer := range layers {
		stream, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, tarEntries(t, stream)...)
		if err := stream.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return entries
}

func entryNamed(t *testing.T, entries []tarEntry, name string) tarEntry {
	t.Helper()
	for _, entry := range entries {
		if entry.name == name {
			return entry
		}
	}
	t.Fatalf("there is no %s", name)
	return tarEntry{}
}
