package nodeagent

import (
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// childAddress is set in the process that TestInheritedListener starts, as systemd starts the
// agent.
const childAddress = "TRIVET_TEST_INHERITED"

func TestInheritedListener(t *testing.T) {
	if address := os.Getenv(childAddress); address != "" {
		answerOnInherited(t, address)
		return
	}
	if l, err := inheritedListener("127.0.0.1:7604"); l != nil || err != nil {
		t.Errorf("without systemd: %v, %v", l, err)
	}
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	file, err := socket.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	child := func(count, address string) *exec.Cmd {
		// LISTEN_PID is the process that exec becomes.
		command := exec.CommandContext(t.Context(), "sh", "-c", `LISTEN_PID=$$ exec "$0" -test.run '^TestInheritedListener$'`, os.Args[0])
		command.Env = append(os.Environ(), "LISTEN_FDS="+count, childAddress+"="+address)
		command.ExtraFiles = []*os.File{file}
		return command
	}
	for range 2 { // a connection that comes while the agent restarts waits for the next process
		conn, err := net.Dial("tcp", socket.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if output, err := child("1", socket.Addr().String()).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		if text, err := io.ReadAll(conn); err != nil || string(text) != "the agent" {
			t.Errorf("answer %q (%v)", text, err)
		}
		_ = conn.Close() // it is read
	}
	for want, command := range map[string]*exec.Cmd{
		"systemd passes 2 sockets":              child("2", socket.Addr().String()),
		"and --kubelet-endpoint is 127.0.0.1:1": child("1", "127.0.0.1:1"),
	} {
		if output, err := command.CombinedOutput(); err == nil || !strings.Contains(string(output), want) {
			t.Errorf("error %v, want %q:\n%s", err, want, output)
		}
	}
}

// answerOnInherited answers one connection to the inherited socket.
func answerOnInherited(t *testing.T, address string) {
	listener, err := inheritedListener(address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "the agent"); err != nil {
		t.Error(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}
