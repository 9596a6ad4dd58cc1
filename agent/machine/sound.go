package machine

import (
	"strings"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

// sound are the microphones and speakers: one of each for a sound card that records or plays. What a monitor plays is not known.
func (t *tree) sound() []margo.Peripheral {
	names := map[string]string{} // by the card's number
	var cards []string
	for line := range strings.Lines(t.text("proc/asound/cards")) { // " 0 [PCH            ]: HDA-Intel - HDA Intel PCH"
		number, rest, ok := strings.Cut(strings.TrimSpace(line), " [")
		_, rest, named := strings.Cut(rest, "]: ")
		driver, name, known := strings.Cut(rest, " - ")
		if !ok || !named || !known || driver == "Dummy" || driver == "Loopback" {
			continue
		}
		names[number] = clean(name)
		cards = append(cards, number)
	}
	plays, records := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(t.text("proc/asound/pcm")) { // "00-00: ALC257 Analog : ALC257 Analog : playback 1 : capture 1"
		at, what, ok := strings.Cut(line, ": ")
		card, _, _ := strings.Cut(at, "-")
		if card = strings.TrimLeft(card, "0"); card == "" {
			card = "0"
		}
		if !ok || strings.Contains(strings.ToUpper(what), "HDMI") || strings.Contains(what, "DisplayPort") {
			continue
		}
		plays[card] = plays[card] || strings.Contains(what, ": playback ")
		records[card] = records[card] || strings.Contains(what, ": capture ")
	}
	var out []margo.Peripheral
	for _, c := range cards {
		if records[c] {
			out = append(out, margo.Peripheral{Type: "microphone", Model: names[c]})
		}
		if plays[c] {
			out = append(out, margo.Peripheral{Type: "speaker", Model: names[c]})
		}
	}
	return out
}
