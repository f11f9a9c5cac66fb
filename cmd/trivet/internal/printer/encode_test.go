package printer_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

func TestEncode(t *testing.T) {
	bookmark := &metav1.Bookmark{InitialEventsEnd: true, Missing: []*metav1.MissingPart{{Service: "leasesvc", Shards: []int32{3}, Message: "no leader"}}}
	for name, test := range map[string]struct {
		write func(proto.Message) ([]byte, error)
		want  string
	}{
		"JSON line": {printer.JSONLine, `{"initialEventsEnd":true,"sources":[],"missing":[{"service":"leasesvc","shards":[3],"replicaId":"","code":"OK","message":"no leader","reason":""}]}`},
		"JSON": {printer.JSON, `{
  "initialEventsEnd": true,
  "sources": [],
  "missing": [
    {
      "service": "leasesvc",
      "shards": [
        3
      ],
      "replicaId": "",
      "code": "OK",
      "message": "no leader",
      "reason": ""
    }
  ]
}
`},
		"YAML": {printer.YAML, `initialEventsEnd: true
missing:
- code: OK
  message: no leader
  reason: ""
  replicaId: ""
  service: leasesvc
  shards:
  - 3
sources: []
`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.write(bookmark)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.want {
				t.Errorf("wrote\n%s, want\n%s", got, test.want)
			}
		})
	}
}
