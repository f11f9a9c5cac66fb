package term

import (
	"testing"
)

// A value of a member key is refused, or describes the replica of the key in names and addresses
// that are safe in a path, a terminal and a page. What is written is what is read.
func FuzzDecodeMember(f *testing.F) {
	for _, value := range []string{
		`{"id":"leasesvc-0","service":"leasesvc","cluster":"a","grpc_address":"127.0.0.1:1","shards":8}`,
		`{"id":"leasesvc-0","service":"leasesvc","cluster":"../a"}`, `{"id":"leasesvc-0","id":"\u001b[2J"}`,
		`{"id":"leasesvc-0","service":"leasesvc","cluster":"a","shards":-1,"released":"1@2 x@y"}`,
		`{"id":"leasesvc-0","service":"leasesvc","cluster":"a","shards":1e30}`, `null`, `[]`, "", "\xff",
	} {
		f.Add([]byte(value))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		read, err := decodeMember("leasesvc", "leasesvc-0", value)
		if err != nil {
			return
		}
		if read.ID != "leasesvc-0" || read.Service != "leasesvc" || !validName(read.Cluster) || !validAddress(read.GRPCAddress) {
			t.Errorf("%q is taken as %+v", value, read)
		}
		_, _ = read.released(1, 2), read.rank()
		written, err := read.encode()
		if err != nil {
			t.Fatalf("%q is taken and cannot be written: %v", value, err)
		}
		again, err := decodeMember("leasesvc", "leasesvc-0", []byte(written))
		if err != nil {
			t.Errorf("%q is written as %s, which is refused: %v", value, written, err)
		}
		if rewritten, _ := again.encode(); rewritten != written {
			t.Errorf("%s is read and written as %s", written, rewritten)
		}
	})
}
