# Send the key to a URL and print the answer, with net/http as it is.
require "net/http"

url = URI(ARGV[0])
answer = Net::HTTP.get_response(url, { "Authorization" => "Bearer #{ENV.fetch('API_KEY')}" })
abort "#{answer.code} #{answer.body}" unless answer.is_a?(Net::HTTPOK)
print answer.body
