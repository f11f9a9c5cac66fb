package nodes

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/cmd/trivet/internal/printer"
	gatewayv1 "github.com/trivet-dev/trivet/proto/trivet/gateway/v1"
	leasev1 "github.com/trivet-dev/trivet/proto/trivet/lease/v1"
)

// Notes tells of zones that are not normal, and of blindness. A zone that is well needs no words.
func (s source) Notes(ctx context.Context) []string {
	response, err := s.client.ListZones(ctx, &gatewayv1.ListZonesRequest{})
	if err != nil {
		return []string{"zones: not known: " + status.Convert(err).Message()}
	}
	var notes []string
	if by := response.GetBlindBy(); by != "" {
		notes = append(notes, "blind: nothing is declared anywhere: "+by)
	}
	for _, zone := range response.GetZones() {
		if s.zone != "" && zone.GetName() != s.zone {
			continue
		}
		if note := zoneNote(zone, response.GetBlindBy()); note != "" {
			notes = append(notes, note)
		}
	}
	return notes
}

// zoneNote tells what holds declarations back in a zone, unless that is so everywhere: it is said then, and zones may be many.
func zoneNote(zone *leasev1.Zone, everywhere string) string {
	how := map[leasev1.Zone_State]string{
		leasev1.Zone_STATE_PARTIAL_DISRUPTION: "partial disruption, ",
		leasev1.Zone_STATE_FULL_DISRUPTION:    "full disruption, ",
	}[zone.GetState()]
	held := zone.GetHeldBy()
	if held == everywhere {
		held = ""
	}
	if how == "" && zone.GetWaiting() == 0 && held == "" {
		return ""
	}
	note := fmt.Sprintf("zone %s: %s%d of %s not ready", zoneName(zone), how, zone.GetNotReady(), printer.Count(int(zone.GetNodes()), "node"))
	if waiting := zone.GetWaiting(); waiting > 0 {
		note += fmt.Sprintf(", %d to be tainted at %s per second", waiting, strconv.FormatFloat(zone.GetTaintRate(), 'g', 3, 64))
	}
	if held != "" {
		note += "; nothing is declared in it: " + held
	}
	return note
}

func zoneName(zone *leasev1.Zone) string {
	if zone.GetName() == "" {
		return "(none)"
	}
	return zone.GetName()
}
