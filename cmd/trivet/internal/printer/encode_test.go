package printer_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

func TestEncode(t *testing.T) {
	zone := &leasev1.ListZonesResponse{Zones: []*leasev1.Zone{{Name: "eu:a", State: leasev1.Zone_STATE_NORMAL, Nodes: 3}}}
	for name, test := range map[string]struct {
		write func(proto.Message) ([]byte, error)
		want  string
	}{
		"JSON line": {printer.JSONLine, `{"zones":[{"name":"eu:a","state":"STATE_NORMAL","nodes":3,"notReady":0,"taintRate":0,"waiting":0,"heldBy":""}],"blindBy":"","blindTime":null,"freshness":null}`},
		"JSON": {printer.JSON, `{
  "zones": [
    {
      "name": "eu:a",
      "state": "STATE_NORMAL",
      "nodes": 3,
      "notReady": 0,
      "taintRate": 0,
      "waiting": 0,
      "heldBy": ""
    }
  ],
  "blindBy": "",
  "blindTime": null,
  "freshness": null
}
`},
		"YAML": {printer.YAML, `blindBy: ""
blindTime: null
freshness: null
zones:
- heldBy: ""
  name: eu:a
  nodes: 3
  notReady: 0
  state: STATE_NORMAL
  taintRate: 0
  waiting: 0
`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.write(zone)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != test.want {
				t.Errorf("wrote\n%s, want\n%s", got, test.want)
			}
		})
	}
}
