# Send the key to a URL and print the answer, with LWP, which reads proxy variables if it is asked to.
use strict;
use warnings;
use LWP::UserAgent;

my $agent = LWP::UserAgent->new(timeout => 20, env_proxy => 1);
my $answer = $agent->get($ARGV[0], Authorization => "Bearer $ENV{API_KEY}");
die $answer->status_line . "\n" . $answer->content unless $answer->is_success;
print $answer->content;
